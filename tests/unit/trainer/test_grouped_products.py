"""Products of rows with matrices of their groups: against a loop over groups, forward and backward, compiled too."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from echorl_testing.trainer.grouped import drawn_groups
from echorl_trainer.grouped_products import (
    grouped_outer,
    grouped_product,
    linear,
    linear_from_experts,
    linear_to_experts,
)


def by_loop(tokens, up, down, groups):
    """What experts make of tokens, an expert at a time, in float64; differentiable."""
    bounds, source, _ = groups
    total = torch.zeros(len(tokens), down.shape[1], dtype=torch.float64)
    for expert, (begin, end) in enumerate(itertools.pairwise(bounds.tolist())):
        own = source[begin:end].long()
        made = (tokens[own] @ up[expert].T).tanh() @ down[expert].T
        total = total.index_add(0, own, made)
    return total


def by_groups(tokens, up, down, groups):
    return linear_from_experts(linear_to_experts(tokens, up, groups).tanh(), down, groups, len(tokens))


def with_gradients(function, inputs, groups):
    mine = [one.detach().clone().requires_grad_() for one in inputs]
    made = function(*mine, groups)
    return [made.detach(), *torch.autograd.grad((made * torch.arange(1, made.numel() + 1).view_as(made)).sum(), mine)]


@given(st.integers(1, 6), st.integers(1, 3), st.integers(3, 5), st.integers(0, 99))
def test_experts_and_their_gradients_are_those_of_a_loop(tokens, each, experts, seed):
    """Any experts, some of them without a token: their gradient is 0."""
    inputs, groups = drawn_groups(tokens, each, experts, width=16, inside=8, seed=seed)
    expected = with_gradients(by_loop, [one.double() for one in inputs], groups)
    for found, wanted in zip(with_gradients(by_groups, inputs, groups), expected, strict=True):
        assert torch.allclose(found.double(), wanted, rtol=1e-4, atol=1e-4)


def test_rows_in_order_are_those_that_are_found_in_place():
    (tokens, up, _), groups = drawn_groups(7, 2, 4, width=16, inside=8, seed=3)
    copies = tokens[groups.source.long()].requires_grad_()
    stacks = [up.clone().requires_grad_() for _ in range(2)]
    in_order = linear(copies, stacks[0], groups.bounds)
    tokens.requires_grad_()
    found = linear_to_experts(tokens, stacks[1], groups)
    assert torch.equal(in_order, found)
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    of_copies, of_stack = torch.autograd.grad(in_order, (copies, stacks[0]), upstream)
    of_tokens, of_other = torch.autograd.grad(found, (tokens, stacks[1]), upstream)
    assert torch.allclose(of_stack, of_other, atol=1e-5)
    assert torch.allclose(torch.zeros_like(tokens).index_add(0, groups.source, of_copies), of_tokens, atol=1e-5)


def test_nothing_comes_of_no_rows():
    stack = torch.ones(3, 8, 16, requires_grad=True)
    rows = torch.zeros(0, 16, requires_grad=True)
    made = linear(rows, stack, torch.zeros(4, dtype=torch.int32))
    assert made.shape == (0, 8)
    of_rows, of_stack = torch.autograd.grad(made.sum(), (rows, stack))
    assert of_rows.shape == (0, 16)
    assert torch.equal(of_stack, torch.zeros(3, 8, 16))


@pytest.mark.parametrize("source", [None, torch.tensor([1, 0, 1, 2], dtype=torch.int32)], ids=["in order", "in place"])
def test_the_compiler_is_told_what_operators_give(source):
    rows, others = torch.randn(4 if source is None else 3, 16), torch.randn(4, 8)
    bounds = torch.tensor([0, 1, 1, 4], dtype=torch.int32)
    torch.library.opcheck(grouped_product, (rows, torch.randn(3, 16, 8), bounds, source))
    for swapped in (False, True):
        torch.library.opcheck(grouped_outer, (rows, others, bounds, source), {"swapped": swapped})


def test_they_are_compiled_once_for_any_number_of_tokens():
    compiled = torch.compile(by_groups, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for tokens in (7, 11, 13):
            inputs, groups = drawn_groups(tokens, 2, 4, width=16, inside=8, seed=tokens)
            found = with_gradients(compiled, inputs, groups)
            for one, wanted in zip(found, with_gradients(by_groups, inputs, groups), strict=True):
                assert torch.allclose(one, wanted, atol=1e-4)


class Operators(TorchDispatchMode):
    """How often each of our operators was called."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "echorl":
            self.calls[function] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("trains", [True, False], ids=["stacks train", "stacks are frozen"])
def test_what_needs_no_gradient_gets_none(trains):
    (tokens, *stacks), groups = drawn_groups(7, 2, 4, width=16, inside=8, seed=3)
    tokens.requires_grad_()
    made = by_groups(tokens, *(stack.requires_grad_(trains) for stack in stacks), groups)
    with Operators() as operators:
        made.sum().backward()
    assert operators.calls[torch.ops.echorl.grouped_outer.default] == (2 if trains else 0)
    assert operators.calls[torch.ops.echorl.grouped_product.default] == 2
    assert all((stack.grad is not None) == trains for stack in stacks)
