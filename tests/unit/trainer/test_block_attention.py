"""Attention by blocks against all scores at once in float64, and the trial that kernels must pass."""

import pytest
import torch

from echorl_trainer.block_attention import Scoring, block_attention
from echorl_trainer.varlen_kernels import HeadCounts, VarlenKernel, try_kernel

LENGTH = 300  # more than a block


def heads(length, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, length, 6), (2, 2, length, 6), (2, 2, length, 6)]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def plain(query, key, value, scale, window, softcap):
    key, value = (part.repeat_interleave(2, dim=1) for part in (key, value))
    scores = query @ key.mT * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    length = query.shape[2]
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    if window is not None:
        seen &= ~torch.ones(length, length, dtype=torch.bool).tril(-window)
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("window", [None, 1, 7, 290, 1000])
def test_values_and_gradients_are_those_of_all_scores_at_once(window, softcap):
    parts = heads(LENGTH)
    upstream = torch.randn(2, 4, LENGTH, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = block_attention(*parts, 0.4, window, softcap)
    expected = plain(*parts, 0.4, window, softcap)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    mine, theirs = (torch.autograd.grad(one, parts, upstream) for one in (found, expected))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_half_precision_is_computed_in_float32():
    parts = [part.detach() for part in heads(20, torch.bfloat16)]
    found = block_attention(*parts, 8.0, 4, 50.0)
    assert found.dtype == torch.bfloat16
    wide = block_attention(*(part.float() for part in parts), 8.0, 4, 50.0)
    assert torch.equal(found, wide.bfloat16())


def test_it_is_an_operator_that_torch_can_compile_and_checkpoint():
    parts = [part.detach().requires_grad_() for part in heads(5)]
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(block_attention, (*parts, 0.4, 2, 0.7), test_utils=tests)


SCORINGS = [Scoring(0.5), Scoring(0.5, window=2), Scoring(0.5, softcap=0.5), Scoring(0.5, window=2, softcap=0.5)]


def kernel(heed):
    """A kernel that computes by blocks what ``heed`` leaves of a scoring."""

    def run(heads, cu_seqlens, _longest, scoring):
        split = [part.transpose(0, 1)[None].split(cu_seqlens.diff().tolist(), dim=2) for part in heads]
        parts = [block_attention(*document, *heed(scoring)) for document in zip(*split, strict=True)]
        return torch.cat(parts, dim=2)[0].transpose(0, 1)

    return VarlenKernel("by blocks", run)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scoring", SCORINGS, ids=str)
def test_a_kernel_that_heeds_windows_and_softcaps_passes_its_trial(scoring, dtype):
    try_kernel(kernel(lambda scoring: scoring), torch.device("cpu"), dtype, HeadCounts(4, 2, 8), scoring)


@pytest.mark.parametrize(
    ("scoring", "heed"),
    [
        pytest.param(SCORINGS[1], lambda one: one._replace(window=None), id="window"),
        pytest.param(SCORINGS[1], lambda one: one._replace(window=3), id="window of one more"),
        pytest.param(SCORINGS[2], lambda one: one._replace(softcap=None), id="softcap"),
        pytest.param(SCORINGS[0], lambda one: one._replace(scale=1.0), id="scale"),
    ],
)
def test_a_kernel_that_does_not_fails_it(scoring, heed):
    with pytest.raises(ArithmeticError, match="a trial's results are wrong"):
        try_kernel(kernel(heed), torch.device("cpu"), torch.bfloat16, HeadCounts(4, 2, 8), scoring)
