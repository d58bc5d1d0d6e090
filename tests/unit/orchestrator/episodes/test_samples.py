"""Hand-computed samples and ECHO weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echorl_core.config import EchoConfig, EchoRoleConfig
from echorl_core.wire.batch import MessageRole, Sample, TokenRole
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.protocol import Rendered
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.episodes.echo import FilterContractError, filter_input, narrow
from echorl_orchestrator.episodes.samples import Built, Owner, build_samples
from echorl_orchestrator.gateway.history import Branch
from echorl_orchestrator.gateway.tokens import prompt_columns, sampled_columns
from echorl_testing.orchestrator.scripted_policy import write_byte_tokenizer

OWNER = Owner("e7", "g", "env", "task", 2)
C, A, E, W = TokenRole.CONTEXT, TokenRole.ACTION, TokenRole.ENV_OUTPUT, TokenRole.WARNING

# One token a part: system and user bodies between scaffold, two sampled tokens, a tool body with a warning, one more.
#   0 <s>   1 sys   2 usr   3 <gen>   4 a   5 stop   6 <t>   7 tool   8 warn   9 tool2   10 <gen>   11 b   12 stop
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
RESULTS = [{"role": "tool", "name": "bash", "content": "tw"}, {"role": "tool", "name": "ls", "content": "t"}]
TOOL_INDEX = {"bash": 0, "ls": 1}


def rendered(ids: list[int], message: list[int], body: list[int], warning: list[int] | None = None) -> Rendered:
    flags = np.array(warning or [0] * len(ids), np.bool_)
    return Rendered(ids, np.array(message, np.int32), np.array(body, np.bool_), flags)


def sampled(ids: list[int], turn: int, origin: int, *, logprobs: list[float] | None = None, version: int = 5) -> Any:
    values = [-0.5] * len(ids) if logprobs is None else logprobs
    return sampled_columns(
        ids, values, versions=(version, version + 1), turn=turn, temperature=0.8, first_origin=origin
    )


def conversation(*, first_logprobs: list[float] | None = None) -> Branch:
    branch = Branch(0)
    branch.append(
        prompt_columns(rendered([10, 11, 12, 13], [-1, 0, 1, -1], [0, 1, 1, 0]), MESSAGES, [1, 2], TOOL_INDEX)
    )
    branch.append(sampled([20, 21], 0, 1, logprobs=first_logprobs))
    branch.append(
        prompt_columns(
            rendered([30, 31, 32, 33, 34], [0, 0, 0, 1, -1], [0, 1, 1, 1, 0], [0, 0, 1, 0, 0]),
            RESULTS,
            [4, 5],
            TOOL_INDEX,
        )
    )
    branch.append(sampled([40, 41], 1, 3, version=7))
    return branch


def build(branches: list[Branch], echo: EchoConfig | None = None, max_branches: int = 8) -> Built:
    return build_samples(branches, ["bash", "ls"], OWNER, reward=0.25, max_branches=max_branches, echo=echo)


def ce(echo: EchoConfig) -> list[float]:
    return [round(float(value), 4) for value in build([conversation()], echo).samples[0].ce_weight]


def test_every_array_of_a_sample() -> None:
    built = build([conversation()])
    (sample,) = built.samples
    assert sample.token_ids.tolist() == [10, 11, 12, 13, 20, 21, 30, 31, 32, 33, 34, 40, 41]
    assert sample.role.tolist() == [C, C, C, C, A, A, C, E, W, E, C, A, A]
    n, s, u, a, t = MessageRole.NONE, MessageRole.SYSTEM, MessageRole.USER, MessageRole.ASSISTANT, MessageRole.TOOL
    assert sample.message_role.tolist() == [n, s, u, n, a, a, t, t, t, t, n, a, a]
    assert sample.scaffold.tolist() == [1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0]
    assert sample.tool.tolist() == [-1, -1, -1, -1, -1, -1, -1, 0, 0, 1, -1, -1, -1]
    assert sample.logprobs.tolist() == [0, 0, 0, 0, -0.5, -0.5, 0, 0, 0, 0, 0, -0.5, -0.5]
    assert sample.version_low.tolist() == [-1, -1, -1, -1, 5, 5, -1, -1, -1, -1, -1, 7, 7]
    assert sample.version_high.tolist() == [-1, -1, -1, -1, 6, 6, -1, -1, -1, -1, -1, 8, 8]
    assert sample.turn.tolist() == [-1, -1, -1, -1, 0, 0, -1, -1, -1, -1, -1, 1, 1]
    assert sample.rl_weight.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1]
    assert not sample.ce_weight.any()
    np.testing.assert_allclose(sample.temperature[[3, 4, 7, 11]], [1.0, 0.8, 1.0, 0.8], rtol=1e-6)
    assert (sample.reward, sample.task_key, sample.attempt, sample.tool_names) == (0.25, "task", 2, ["bash", "ls"])
    assert (built.kept_tokens, built.version_low, built.version_high) == (4, 5, 8)


@pytest.mark.parametrize("bad", [[-0.5, float("nan")], [float("-inf"), -0.1], [-9999.0, -0.1], [-0.5]])
def test_a_turn_with_an_unusable_logprob_does_not_train(bad: list[float]) -> None:
    built = build([conversation(first_logprobs=bad)], EchoConfig(tool=EchoRoleConfig(alpha=0.1)))
    (sample,) = built.samples
    assert sample.role.tolist()[4:6] == [C, C]
    assert sample.rl_weight.tolist()[4:6] == [0, 0]
    assert sample.version_low.tolist()[4:6] == [-1, -1]
    assert np.isfinite(sample.logprobs).all()
    # What came after the model's first token is an observation all the same.
    assert sample.role.tolist()[7:10] == [E, W, E]
    assert sample.ce_weight[7] == np.float32(0.1)
    assert built.kept_tokens == 2


def test_echo_on_tool_bodies_leaves_warnings_and_scaffold_out() -> None:
    assert ce(EchoConfig(tool=EchoRoleConfig(alpha=0.05))) == [0, 0, 0, 0, 0, 0, 0, 0.05, 0, 0.05, 0, 0, 0]


def test_echo_on_some_tools() -> None:
    only = EchoConfig(tool=EchoRoleConfig(alpha=0.05, tool_names=["ls"]))
    assert ce(only) == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0.05, 0, 0, 0]
    assert not any(ce(EchoConfig(tool=EchoRoleConfig(alpha=0.05, tool_names=["nope"]))))


def test_echo_on_warnings_only_when_asked() -> None:
    both = EchoConfig(tool=EchoRoleConfig(alpha=0.05), warning=EchoRoleConfig(alpha=0.5))
    assert ce(both) == [0, 0, 0, 0, 0, 0, 0, 0.05, 0.5, 0.05, 0, 0, 0]


def test_the_initial_prompt_trains_only_by_its_own_roles() -> None:
    both = EchoConfig(system=EchoRoleConfig(alpha=0.1), user=EchoRoleConfig(alpha=0.2))
    assert ce(both) == [0, 0.1, 0.2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]


def test_template_tokens_never_train_though_they_belong_to_a_message() -> None:
    """As codecs render: the template around a body has its message, and so its role."""
    branch = Branch(0)
    #   0 <sys>  1 s  2 </sys>  3 <usr>  4 u  5 </usr>  6 <gen>
    prompt = rendered(list(range(10, 17)), [0, 0, 0, 1, 1, 1, -1], [0, 1, 0, 0, 1, 0, 0])
    branch.append(prompt_columns(prompt, MESSAGES, [1, 2], {}))
    branch.append(sampled([20], 0, 1))
    #   8 <usr>  9 u  10 </usr>  11 <tool>  12 t  13 </tool>  14 <gen>
    answers = [MESSAGES[1], RESULTS[0]]
    later = rendered(list(range(30, 37)), [0, 0, 0, 1, 1, 1, -1], [0, 1, 0, 0, 1, 0, 0])
    branch.append(prompt_columns(later, answers, [4, 5], TOOL_INDEX))
    branch.append(sampled([40], 1, 2))
    alphas = {"system": 0.1, "user": 0.2, "tool": 0.3}
    (sample,) = build(
        [branch], EchoConfig(**{role: EchoRoleConfig(alpha=alpha) for role, alpha in alphas.items()})
    ).samples
    s, u, t = MessageRole.SYSTEM, MessageRole.USER, MessageRole.TOOL
    assert sample.message_role[[0, 2, 3, 5, 8, 10, 11, 13]].tolist() == [s, s, u, u, u, u, t, t]
    trained = {int(place): round(float(sample.ce_weight[place]), 4) for place in np.flatnonzero(sample.ce_weight)}
    assert trained == {1: 0.1, 4: 0.2, 9: 0.2, 12: 0.3}


def test_of_a_real_codecs_messages_the_bodies_alone_train(tmp_path: Path) -> None:
    tokenizer = TextTokenizer(write_byte_tokenizer(tmp_path), name="bytes")
    codec, branch = CompactCodec(tokenizer), Branch(0)
    asked = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "port?"}]
    branch.append(prompt_columns(codec.render(asked, [], {}), asked, [1, 2], {}))
    action = codec.action_ids({"role": "assistant", "content": "22"}, [])
    branch.append(sampled(action, 0, 1))
    more = [{"role": "user", "content": "sure?"}]
    bridged = codec.extend([], action, more, [], {})
    assert bridged is not None
    branch.append(prompt_columns(bridged, more, [4], {}))
    both = EchoConfig(system=EchoRoleConfig(alpha=1.0), user=EchoRoleConfig(alpha=1.0))
    (sample,) = build([branch], both).samples
    assert tokenizer.decode(sample.token_ids[sample.ce_weight != 0].tolist()) == "be briefport?sure?"


def test_tool_messages_of_the_initial_prompt_are_no_answers_to_the_policy() -> None:
    branch = Branch(0)
    shown = [*MESSAGES, RESULTS[0]]
    branch.append(prompt_columns(rendered([11, 12, 13], [0, 1, 2], [1, 1, 1]), shown, [1, 2, 3], TOOL_INDEX))
    branch.append(sampled([20], 0, 1))
    branch.append(prompt_columns(rendered([30], [0], [1]), RESULTS, [4], TOOL_INDEX))
    (sample,) = build([branch], EchoConfig(tool=EchoRoleConfig(alpha=0.5))).samples
    assert sample.message_role[2] == MessageRole.TOOL
    assert sample.ce_weight.tolist() == [0, 0, 0, 0, 0.5]


def test_token_zero_never_trains() -> None:
    branch = Branch(0)
    branch.append(prompt_columns(rendered([11, 12], [0, 0], [1, 1]), MESSAGES[1:], [1], {}))
    branch.append(sampled([20], 0, 1))
    (sample,) = build([branch], EchoConfig(user=EchoRoleConfig(alpha=0.2))).samples
    assert sample.ce_weight.tolist() == [0, np.float32(0.2), 0]


@pytest.mark.parametrize("alpha", [0.3, 0.0])
def test_assistant_alpha_moves_actions_from_rl_to_cross_entropy(alpha: float) -> None:
    (sample,) = build([conversation()], EchoConfig(assistant=EchoRoleConfig(alpha=alpha))).samples
    assert not sample.rl_weight.any()
    np.testing.assert_allclose(sample.ce_weight[[4, 5, 11, 12]], alpha, rtol=1e-6)
    assert np.count_nonzero(sample.ce_weight) == (4 if alpha else 0)


def forked() -> list[Branch]:
    """Two branches: the second shares the first turn and the tool's answer, then goes its own way."""
    first = conversation()
    second = Branch(1)
    second.append(first.columns().head(11))
    second.append(sampled([50, 51], 2, 9))
    return [first, second]


def test_shared_tokens_train_in_the_first_branch_alone() -> None:
    built = build(forked(), EchoConfig(tool=EchoRoleConfig(alpha=0.05)))
    first, second = built.samples
    assert first.rl_weight.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1]
    assert second.rl_weight.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert np.count_nonzero(first.ce_weight) == 2
    assert not second.ce_weight.any()
    assert second.role.tolist() == first.role.tolist()
    assert built.kept_tokens == 6


def test_the_same_message_rendered_anew_is_not_trained_twice() -> None:
    first = conversation()
    second = Branch(1)
    again = rendered([10, 11, 12, 13, 99, 30, 31, 33, 34], [-1, 0, 1, -1, -1, 2, 2, 3, -1], [0, 1, 1, 0, 0, 0, 1, 1, 0])
    second.append(prompt_columns(again, [*MESSAGES, *RESULTS], [1, 2, 4, 5], TOOL_INDEX))
    second.append(sampled([50], 2, 9))
    built = build([first, second], EchoConfig(user=EchoRoleConfig(alpha=1.0)))
    assert built.samples[0].ce_weight[2] == 1.0
    assert not built.samples[1].ce_weight.any()


def test_what_falls_away_beyond_max_branches_is_counted_and_its_shared_tokens_train_elsewhere() -> None:
    branches = []
    for number in range(10):
        branch = Branch(number)
        branch.append(prompt_columns(rendered([1, number], [-1, 0], [0, 1]), MESSAGES, [1, 2], {}))
        branch.append(sampled([2, 3], number, 1 + 2 * number))
        branches.append(branch)
    late = branches[8].columns()
    branches[9].parts = [late.head(3), branches[9].columns().tail(3)]
    built = build(branches)
    assert [sample.branch for sample in built.samples] == [0, 1, 2, 3, 4, 5, 6, 9]
    assert built.dropped_branches == 2
    # The token that branch 9 shares with the dropped branch 8 trains in branch 9.
    assert built.samples[-1].rl_weight.tolist() == [0, 0, 1, 1]
    assert [sample.branch for sample in build(branches, max_branches=1).samples] == [9]


def test_a_filter_can_only_narrow() -> None:
    built = build([conversation()], EchoConfig(tool=EchoRoleConfig(alpha=0.05), user=EchoRoleConfig(alpha=0.2)))
    keep = [[True] * 7 + [False] + [True] * 5]
    (sample,) = narrow(built.samples, keep)
    assert np.flatnonzero(sample.ce_weight).tolist() == [2, 9]
    assert sample.rl_weight.tolist() == built.samples[0].rl_weight.tolist()


@pytest.mark.parametrize("alpha", [0.3, 0.0])
def test_an_action_that_a_filter_takes_from_echo_goes_back_to_rl(alpha: float) -> None:
    built = build([conversation()], EchoConfig(assistant=EchoRoleConfig(alpha=alpha)))
    (sample,) = narrow(built.samples, [[index != 4 for index in range(13)]])
    assert np.flatnonzero(sample.rl_weight).tolist() == [4]
    np.testing.assert_allclose(sample.ce_weight, [alpha * (index in {5, 11, 12}) for index in range(13)], rtol=1e-6)
    assert np.flatnonzero(sample.ce_selected).tolist() == [5, 11, 12]
    # What is refused already is not refused again: nothing comes back twice, nothing is taken.
    (again,) = narrow([sample], [[index != 4 for index in range(13)]])
    assert again.rl_weight.tolist() == sample.rl_weight.tolist()


@pytest.mark.parametrize("alpha", [0.3, 0.0])
def test_a_shared_action_goes_back_to_rl_in_one_branch_alone(alpha: float) -> None:
    built = build(forked(), EchoConfig(assistant=EchoRoleConfig(alpha=alpha)))
    assert [np.flatnonzero(sample.ce_selected).tolist() for sample in built.samples] == [[4, 5, 11, 12], [11, 12]]
    first, second = narrow(built.samples, [[index != 4 for index in range(13)] for _ in range(2)])
    assert np.flatnonzero(first.rl_weight).tolist() == [4]
    assert not second.rl_weight.any()
    # The branch that holds no selection of the token cannot give it back.
    first, second = narrow(built.samples, [[True] * 13, [False] * 13])
    assert not first.rl_weight.any()
    assert np.flatnonzero(second.rl_weight).tolist() == [11, 12]


def test_a_filter_takes_tokens_of_alpha_0_out_of_what_echo_counts() -> None:
    built = build([conversation()], EchoConfig(tool=EchoRoleConfig(alpha=0.05), user=EchoRoleConfig(alpha=0.0)))
    assert np.flatnonzero(built.samples[0].ce_selected).tolist() == [2, 7, 9]
    (sample,) = narrow(built.samples, [[index not in {2, 9} for index in range(13)]])
    assert np.flatnonzero(sample.ce_selected).tolist() == [7]
    assert sample.rl_weight.tolist() == built.samples[0].rl_weight.tolist()


@pytest.mark.parametrize(
    ("keep", "problem"),
    [
        (None, "found NoneType, accepted are 1 lists"),
        ([], "found 0 lists, accepted are 1 lists"),
        ([[True]], "sample 0: found 1 flags for 13 tokens"),
        ([[1] * 13], "sample 0: accepted is a list of true and false"),
        ([True], "sample 0: accepted is a list of true and false"),
    ],
)
def test_a_misaligned_filter_names_episode_and_field(keep: Any, problem: str) -> None:
    samples: list[Sample] = build([conversation()]).samples
    with pytest.raises(FilterContractError, match=f"episode e7: echo.filter: {problem}"):
        narrow(samples, keep)


def test_filters_see_tokens_and_record() -> None:
    seen = filter_input(build([conversation()]).samples, {"episode": "e7", "reward": 1.0})
    assert seen["reward"] == 1.0
    assert seen["samples"][0]["role"] == [C, C, C, C, A, A, C, E, W, E, C, A, A]
    assert seen["samples"][0]["tool_names"] == ["bash", "ls"]


def test_a_sample_carries_the_experts_of_its_first_tokens() -> None:
    """Two layers, two experts each, of 12 of 13 tokens; another branch has none."""
    told, without = conversation(), conversation()
    experts = np.arange(48, dtype=np.uint8).reshape(12, 2, 2)
    told.routed.add(0, experts[:5])
    told.routed.add(3, experts[3:])
    samples = build([told, without]).samples
    assert samples[0].experts is not None
    assert (samples[0].experts.tolist(), samples[0].routed_tokens) == (list(range(48)), 12)
    assert (samples[1].experts, samples[1].routed_tokens) == (None, 0)
