"""Means and maxima by environment and tool, by hand."""

import msgspec
import numpy as np
import pytest
import torch

from echorl_core.wire import MicroBatch, TokenRole
from echorl_testing.packs import document
from echorl_trainer.batches import score_batch, sources_of
from echorl_trainer.losses import cross_entropy_loss
from echorl_trainer.model import TokenScores
from echorl_trainer.tally import NAMED_TOOLS, Tally, merge, summarize, tally_batch

CPU = torch.device("cpu")


def observed(tools: list[int], names: list[str], *, environment: str = "a", untrained: int = 0) -> MicroBatch:
    """A token of context, then one of environment output for each entry; the last ``untrained`` have no weight."""
    count = len(tools) + 1
    ce_weight = np.full(count, 0.5, np.float32)
    ce_weight[0] = 0
    ce_weight[count - untrained :] = 0
    role = np.full(count, TokenRole.ENV_OUTPUT, np.uint8)
    role[0] = TokenRole.CONTEXT
    nothing = np.zeros(count, np.float32)
    return msgspec.structs.replace(
        document(1, count, environment=environment),
        role=role,
        rl_weight=nothing,
        ce_weight=ce_weight,
        tool=np.array([-1, *tools], np.int16),
        tool_names=names,
    )


def tallied(micro: MicroBatch, nll: list[float]) -> Tally:
    sources = sources_of([micro])
    scored = score_batch(micro, sources=sources, version=0, vocab_size=265, device=CPU)
    logprobs = -torch.tensor(nll)
    outputs = {"ce": cross_entropy_loss(logprobs, scored.ce_weight, denominator=1.0)}
    tally = Tally.empty(sources, CPU)
    tally_batch(tally, scored, TokenScores(logprobs, torch.zeros_like(logprobs)), outputs)
    return tally.cpu()


def test_echo_nll_has_mean_and_maximum_by_environment_and_tool() -> None:
    """The second rank names its tools in another order, and its last token does not train."""
    first = tallied(observed([0, 0, 1, -1], ["bash", "ls"]), [1.0, 3.0, 4.0, 8.0])
    second = tallied(observed([1, 0, 1], ["ls", "bash"], untrained=1), [2.0, 6.0, 64.0])
    other = tallied(observed([0], ["bash"], environment="b"), [0.5])
    found, _ = summarize(merge([first, second, other]))
    assert {name: value for name, value in found.items() if name.startswith("echo_nll")} == {
        "echo_nll/all": pytest.approx(24.5 / 7),
        "echo_nll_max/all": 8.0,
        "echo_nll/a": pytest.approx(24 / 6),
        "echo_nll_max/a": 8.0,
        "echo_nll/a/bash": 2.0,
        "echo_nll_max/a/bash": 3.0,
        "echo_nll/a/ls": 5.0,
        "echo_nll_max/a/ls": 6.0,
        "echo_nll/b": 0.5,
        "echo_nll_max/b": 0.5,
        "echo_nll/b/bash": 0.5,
        "echo_nll_max/b/bash": 0.5,
    }
    assert found["env_nll/a"] == pytest.approx(88 / 7)
    assert found["entropy/all"] is None


def test_an_environment_names_only_the_tools_with_the_most_tokens() -> None:
    names = [f"t{number:02}" for number in range(NAMED_TOOLS + 2)]
    tools = [*range(len(names)), *range(2, len(names))]
    found, _ = summarize(tallied(observed(tools, names), [1.0] * len(tools)))
    told = {name.removeprefix("echo_nll/a/") for name in found if name.startswith("echo_nll/a/")}
    assert told == set(names[2:])
    assert found["echo_nll/a"] == 1.0


def test_without_echo_tokens_there_is_neither_mean_nor_maximum() -> None:
    found, _ = summarize(tallied(observed([0, 0], ["bash"], untrained=2), [1.0, 2.0]))
    assert (found["echo_nll/a"], found["echo_nll_max/a"], found["env_nll/a"]) == (None, None, 1.5)
    assert "echo_nll/a/bash" not in found


def test_a_tool_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sample e1/0: tool outside -1\.\.0"):
        tallied(observed([1], ["bash"]), [1.0])
