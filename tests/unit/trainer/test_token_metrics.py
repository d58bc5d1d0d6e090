"""Means, deviations and bounds by environment and tool, by hand."""

import math

import msgspec
import numpy as np
import pytest
import torch

from echorl_core.wire.batch import MicroBatch, TokenRole
from echorl_testing.orchestrator.packs import document
from echorl_trainer.batches import score_batch, sources_of
from echorl_trainer.losses import LossOutput, cross_entropy_loss
from echorl_trainer.model import TokenScores
from echorl_trainer.token_metrics import NAMED_TOOLS, TokenMetrics, count_batch, merge, summarize

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


def tallied(micro: MicroBatch, nll: list[float]) -> TokenMetrics:
    sources = sources_of([micro])
    scored = score_batch(micro, sources=sources, version=0, vocab_size=265, device=CPU)
    logprobs = -torch.tensor(nll)
    outputs = {"ce": cross_entropy_loss(logprobs, scored.ce_weight, denominator=1.0)}
    metrics = TokenMetrics.empty(sources, CPU)
    count_batch(metrics, scored, TokenScores(logprobs, torch.zeros_like(logprobs)), outputs)
    return metrics.cpu()


def test_echo_nll_has_mean_and_maximum_by_environment_and_tool() -> None:
    """The second rank names its tools in another order, and its last token does not train."""
    first = tallied(observed([0, 0, 1, -1], ["bash", "ls"]), [1.0, 3.0, 4.0, 8.0])
    second = tallied(observed([1, 0, 1], ["ls", "bash"], untrained=1), [2.0, 6.0, 64.0])
    other = tallied(observed([0], ["bash"], environment="b"), [0.5])
    found, _ = summarize(merge([first, second, other]))
    assert {name: value for name, value in found.items() if name.startswith(("echo_nll/", "echo_nll_max/"))} == {
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


def acted(entropy: list[float], *, environment: str = "a", **terms: list[float]) -> TokenMetrics:
    """Of one rank: a token of context, one of environment output that has no weight, then one action a value."""
    count = len(entropy) + 2
    role = np.full(count, TokenRole.ACTION, np.uint8)
    role[:2] = TokenRole.CONTEXT, TokenRole.ENV_OUTPUT
    action = role == TokenRole.ACTION
    nothing = np.zeros(count, np.float32)
    micro = msgspec.structs.replace(
        document(1, count, environment=environment),
        role=role,
        rl_weight=action.astype(np.float32),
        ce_weight=nothing,
    )
    sources = sources_of([micro])
    scored = score_batch(micro, sources=sources, version=0, vocab_size=265, device=CPU)
    # What the output's row holds must reach none of the numbers.
    metrics = {name: torch.tensor([99.0, *values]) for name, values in terms.items()}
    outputs = {
        "rl": LossOutput(torch.zeros(()), {name.replace("custom_", "custom/"): v for name, v in metrics.items()})
    }
    metrics = TokenMetrics.empty(sources, CPU)
    scores = TokenScores(torch.full((count - 1,), -3.0), torch.tensor([99.0, *entropy]))
    # In two micro-batches of the same tokens: means and deviations are those of one.
    for _ in range(2):
        count_batch(metrics, scored, scores, outputs)
    return metrics.cpu()


def of(found: dict[str, float | None], metric: str, scope: str) -> list[float | None]:
    return [found[f"{metric}{ending}/{scope}"] for ending in ("", "_std", "_min", "_max")]


def test_every_scope_has_mean_deviation_and_bounds_over_ranks_and_micro_batches() -> None:
    """Entropies 1, 3 on one rank and 2, 6 on another; in ``b`` 9, 9. Deviations: of 1, 2, 3, 6 the root of 3.5."""
    ones = {"mismatch_kl": [1.0, 1.0], "dropped_low": [0.0, 1.0], "dropped_high": [0.0, 0.0]}
    first = acted([1.0, 3.0], ratio=[0.5, 1.5], teacher_kl=[-1.0, 0.0], **ones)
    second = acted([2.0, 6.0], ratio=[1.0, 1.0], teacher_kl=[-2.0, -1.0], **ones)
    other = acted([9.0, 9.0], environment="b", ratio=[4.0, 2.0], teacher_kl=[3.0, 1.0], **ones)
    found, _ = summarize(merge([first, second, other]))
    assert of(found, "entropy", "a") == pytest.approx([3.0, math.sqrt(3.5), 1.0, 6.0])
    assert of(found, "entropy", "b") == [9.0, 0.0, 9.0, 9.0]
    assert of(found, "entropy", "all") == pytest.approx([5.0, math.sqrt(212 / 6 - 25), 1.0, 9.0])
    assert of(found, "ratio", "a") == pytest.approx([1.0, math.sqrt(0.125), 0.5, 1.5])
    assert of(found, "ratio", "b") == pytest.approx([3.0, 1.0, 2.0, 4.0])
    assert found["ratio/mean"] == found["ratio/all"] == pytest.approx(10 / 6)
    assert of(found, "teacher_kl", "a") == pytest.approx([-1.0, math.sqrt(0.5), -2.0, 0.0])
    assert of(found, "teacher_kl", "all") == pytest.approx([0.0, math.sqrt(16 / 6), -2.0, 3.0])
    assert of(found, "mismatch_kl", "all") == [1.0, 0.0, 1.0, 1.0]
    assert of(found, "env_nll", "b") == [3.0, 0.0, 3.0, 3.0]
    assert of(found, "echo_nll", "all") == [None] * 4


def test_shares_and_custom_metrics_are_by_environment_too() -> None:
    """Of ``a`` one token in two, of ``b`` one in four; a metric that a function calls ``x_max`` stays what it is."""
    first = acted(
        [1.0, 1.0],
        dropped_low=[1.0, 0.0],
        dropped_high=[0.0, 0.0],
        is_clipped_low=[0.0, 1.0],
        custom_x=[2.0, 4.0],
        custom_x_max=[7.0, 7.0],
    )
    second = acted(
        [1.0] * 4,
        environment="b",
        dropped_low=[0.0] * 4,
        dropped_high=[0.0, 1.0, 0.0, 0.0],
        is_clipped_low=[0.0] * 4,
        custom_x=[0.0, 0.0, 6.0, 6.0],
        custom_x_max=[1.0] * 4,
    )
    found, _ = summarize(merge([first, second]))
    assert (found["is_masked/a"], found["is_masked_low/a"], found["is_masked_high/a"]) == (0.5, 0.5, 0.0)
    assert (found["is_masked/b"], found["is_masked_low/b"], found["is_masked_high/b"]) == (0.25, 0.0, 0.25)
    assert found["is_masked_low"] == found["is_masked_low/all"] == pytest.approx(1 / 6)
    assert (found["is_clipped_low/a"], found["is_clipped_low/b"]) == (0.5, 0.0)
    assert found["is_clipped_low"] == found["is_clipped_low/all"] == pytest.approx(1 / 6)
    assert [found[f"custom/x{ending}/a"] for ending in ("", "_std", "_min")] == [3.0, 1.0, 2.0]
    assert [found[f"custom/x{ending}/all"] for ending in ("", "_min")] == [3.0, 0.0]
    assert found["custom/x"] == 3.0
    assert (found["custom/x_max/a"], found["custom/x_max_max/a"]) == (7.0, 7.0)
    assert "teacher_kl/a" not in found


def test_squares_of_large_sums_keep_small_deviations() -> None:
    """A deviation of a thousandth around 1000: float32 sums of squares would lose it altogether."""
    found, _ = summarize(acted([999.9990234375, 1000.0009765625] * 50))
    assert of(found, "entropy", "all") == pytest.approx([1000.0, 0.0009765625, 999.9990234375, 1000.0009765625])
