"""Which tokens of a conversation are learned in mode sft."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echorl_core.config import BatchConfig, ModelConfig, SftConfig
from echorl_core.wire.batch import Sample, TokenRole
from echorl_orchestrator.batches.sealing import compose
from echorl_orchestrator.codec import build_codec
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.protocol import ChatCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.episode_outcome import EpisodeOutcome, StopReason
from echorl_orchestrator.episodes.attempt_outcome import EpisodeRequest
from echorl_orchestrator.episodes.recorded_conversations import recorded_outcome
from echorl_orchestrator.episodes.samples import Owner
from echorl_orchestrator.episodes.sft import SftSamples, Talk, sft_samples
from echorl_orchestrator.failures import ErrorKind
from echorl_orchestrator.filters.rules import Verdict
from echorl_orchestrator.rollout.groups import ReadyEpisode, failure_of
from echorl_orchestrator.tasks.task_deck import Ticket
from echorl_testing.orchestrator.scripted_player import batch_config, environment
from echorl_testing.orchestrator.scripted_policy import write_byte_tokenizer

OWNER = Owner("e0", "g0", "talks", "k", 1)


def call(number: int, name: str, **arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "port?"},
    call(1, "grep", pattern="port"),
    {"role": "tool", "tool_call_id": "c1", "content": "etc/a"},
    call(2, "cat", path="etc/a"),
    {"role": "tool", "tool_call_id": "c2", "content": "port=fern"},
    {"role": "assistant", "content": "fern"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_tokenizer(tmp_path_factory.mktemp("models") / "Qwen3-4B")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer(folder, name="bytes")


@pytest.fixture(scope="module")
def compact(tokenizer: TextTokenizer) -> CompactCodec:
    return CompactCodec(tokenizer)


@pytest.fixture(scope="module")
def qwen3(folder: Path) -> ChatCodec:
    config = ModelConfig(path=str(folder), dtype="float32", max_model_len=512, renderer="qwen3")
    return build_codec(config)  # type: ignore[return-value]  # not engine


def learn(codec: ChatCodec, messages: list[dict[str, Any]], *roles: str, **changes: Any) -> SftSamples:
    talk = Talk(messages, context=changes.pop("context", frozenset()))
    config = SftConfig(train_roles=list(roles) or ["assistant"], tool_names=changes.pop("tools", None))
    return sft_samples(codec, [talk], OWNER, config, max_tokens=changes.pop("most", 512), reward=None)


def learned(tokenizer: TextTokenizer, sample: Sample) -> list[str]:
    """The texts of the runs of targets."""
    marked = sample.ce_weight != 0
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]]).astype(int)))
    return [tokenizer.decode(sample.token_ids[a:b].tolist()) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def test_the_model_learns_its_calls_its_answer_and_where_its_turns_end(
    compact: CompactCodec, tokenizer: TextTokenizer
) -> None:
    [sample] = learn(compact, CHAT).built.samples
    assert learned(tokenizer, sample) == [
        "<tool_call>grep port</tool_call><|im_end|>",
        "<tool_call>cat etc/a</tool_call><|im_end|>",
        "fern<|im_end|>",
    ]
    assert set(sample.ce_weight.tolist()) == {0.0, 1.0}
    assert not sample.rl_weight.any()
    assert (sample.version_low == -1).all()
    assert tokenizer.decode(sample.token_ids.tolist()).endswith("<|im_start|>assistant\nfern<|im_end|>\n")


@pytest.mark.parametrize(
    ("roles", "tools", "expected"),
    [
        (["tool"], None, ["etc/a", "port=fern"]),
        (["tool"], ["cat"], ["port=fern"]),
        (["tool"], ["ls"], None),
        (["system", "user"], None, ["be brief", "port?"]),
        (["assistant", "tool"], ["grep"], 4),
    ],
)
def test_roles_and_tools_choose(
    compact: CompactCodec, tokenizer: TextTokenizer, roles: list[str], tools: list[str] | None, expected: Any
) -> None:
    samples = learn(compact, CHAT, *roles, tools=tools).built.samples
    if expected is None:
        assert samples == []
        return
    texts = learned(tokenizer, samples[0])
    assert (len(texts) if isinstance(expected, int) else texts) == expected


def test_a_family_with_json_calls_learns_the_same_turns(qwen3: ChatCodec, tokenizer: TextTokenizer) -> None:
    [sample] = learn(qwen3, CHAT).built.samples
    texts = learned(tokenizer, sample)
    assert len(texts) == 3
    assert all(text.endswith("<|im_end|>") for text in texts)
    assert '"name": "grep", "arguments": {"pattern": "port"}' in texts[0]
    [answers] = learn(qwen3, CHAT, "tool", tools=["cat"]).built.samples
    assert learned(tokenizer, answers) == ["port=fern"]


def test_what_the_environment_says_after_the_first_turn_is_its_output(
    compact: CompactCodec, tokenizer: TextTokenizer
) -> None:
    [sample] = learn(compact, CHAT).built.samples
    said = sample.token_ids[sample.role == TokenRole.ENV_OUTPUT].tolist()
    assert tokenizer.decode(said) == "etc/aport=fern"
    assert not (sample.role == TokenRole.ACTION).any()


def test_the_first_token_is_never_learned(compact: CompactCodec) -> None:
    class Bare:
        attributed = True

        def conversation(self, messages: Any, tools: Any) -> Any:
            whole = compact.conversation(messages, tools)
            return type(whole)(
                whole.ids[1:-1], whole.message[1:-1], np.ones(len(whole.ids) - 2, bool), whole.warning[1:-1]
            )

    [sample] = learn(Bare(), [CHAT[-1]]).built.samples  # type: ignore[arg-type]
    assert sample.ce_weight[0] == 0
    assert (sample.ce_weight[1:] == 1).all()


def test_a_long_talk_loses_its_end(compact: CompactCodec, tokenizer: TextTokenizer) -> None:
    whole = learn(compact, CHAT).built.samples[0]
    cut = int(np.flatnonzero(whole.ce_weight)[3])
    found = learn(compact, CHAT, most=cut)
    assert found.truncated
    assert found.built.kept_tokens == 3
    assert found.built.samples[0].num_tokens == cut
    assert learn(compact, CHAT, most=5).built.samples == []


def test_messages_that_an_earlier_talk_trains_are_context(compact: CompactCodec, tokenizer: TextTokenizer) -> None:
    [sample] = learn(compact, CHAT, context=frozenset(range(5))).built.samples
    assert learned(tokenizer, sample) == ["fern<|im_end|>"]


texts = st.text(max_size=12)
answers = st.builds(lambda text: {"role": "tool", "name": "grep", "content": text}, texts)
turns = st.builds(lambda text: {"role": "assistant", "content": text}, texts)
users = st.builds(lambda text: {"role": "user", "content": text}, texts)


@settings(max_examples=60, deadline=None)
@given(first=users, rest=st.lists(st.one_of(answers, turns, users), min_size=1, max_size=6), cut=st.integers(1, 200))
def test_every_target_belongs_to_a_trained_role_and_roles_are_disjoint(
    compact: CompactCodec, first: dict[str, Any], rest: list[dict[str, Any]], cut: int
) -> None:
    masks = {}
    for role in ("assistant", "tool", "user"):
        samples = learn(compact, [first, *rest], role, most=cut).built.samples
        masks[role] = samples[0].ce_weight != 0 if samples else np.zeros(cut, bool)
    together = learn(compact, [first, *rest], "assistant", "tool", "user", most=cut).built.samples
    total = sum(int(mask.sum()) for mask in masks.values())
    assert total == (int((together[0].ce_weight != 0).sum()) if together else 0)


def test_the_denominator_is_the_number_of_targets(compact: CompactCodec) -> None:
    def ready(messages: list[dict[str, Any]], key: str) -> ReadyEpisode:
        built = sft_samples(
            compact, [Talk(messages)], Owner(key, key, "talks", key, 1), SftConfig(), max_tokens=512, reward=None
        ).built
        outcome = EpisodeOutcome(key, "talks", key, built.samples, None, StopReason.TERMINATED)
        return ReadyEpisode(outcome, key, Ticket("talks", 0, 0, 0), 0.0, Verdict(), None, partial=False)

    config = BatchConfig(mode="sft", group_size=1, batch_size=2, max_staleness=0, seq_len=512, num_ranks=2)
    content = compose([ready(CHAT, "a"), ready(CHAT[:3], "b")], config, frozenset(), step=9)
    assert content is not None
    # grep port: 9 characters, two markers, the end; cat etc/a: 9, 2, 1; fern: 4, 1.
    assert content.denominators == {"rl": 0.0, "ce": 12 + 12 + 5 + 12}
    assert content.trained_tokens == 41
    weights = np.concatenate([micro.ce_weight for rank in content.ranks for micro in rank])
    assert weights.sum() == 41


def of_task(codec: ChatCodec, **task: Any) -> EpisodeOutcome:
    request = EpisodeRequest(environment("talks"), {"key": 1, **task}, "e0", "g0", 0, 1)
    return recorded_outcome(codec, request, batch_config(mode="sft"), max_tokens=512)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ({"messages": []}, "messages: accepted is a list of at least one chat message"),
        ({"messages": CHAT, "reward": "good"}, "reward: found 'good', accepted is a finite number"),
        ({"messages": CHAT, "reward": float("nan")}, "reward: found nan, accepted is a finite number"),
        ({"messages": CHAT, "tools": "grep"}, "tools: accepted is a list of tool definitions"),
        ({}, "messages: accepted is a list of at least one chat message"),
    ],
)
@pytest.mark.parametrize("family", ["compact", "qwen3"])
def test_a_task_that_is_no_conversation_fails_alone_and_says_why(
    task: dict[str, Any], told: str, family: str, request: pytest.FixtureRequest
) -> None:
    found = of_task(request.getfixturevalue(family), **task)
    assert failure_of(found) is ErrorKind.ENV
    assert found.error == f"task 1 is no conversation: {told}"


def test_a_given_call_needs_no_content_beside_it(compact: CompactCodec) -> None:
    bare = [{name: value for name, value in message.items() if value is not None} for message in CHAT]
    found = of_task(compact, messages=bare, reward=1)
    assert (found.error, found.reward) == (None, 1)
    assert [one.token_ids.tolist() for one in found.samples] == [
        one.token_ids.tolist() for one in of_task(compact, messages=CHAT).samples
    ]
