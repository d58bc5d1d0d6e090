"""Products of rows with matrices of their groups: against a loop over groups, forward and backward, compiled too."""

import itertools
import sys
from collections import Counter

import pytest
import structlog
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from echorl_testing.trainer.grouped import drawn_groups
from echorl_trainer import grouped_products
from echorl_trainer.grouped_products import (
    grouped_outer,
    grouped_product,
    linear,
    linear_from_experts,
    linear_to_experts,
    products_name,
    try_quack,
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


def with_gradients(function, inputs, groups, *, stacks=True):
    mine = [one.detach().clone().requires_grad_(stacks or one is inputs[0]) for one in inputs]
    made = function(*mine, groups)
    weighed = (made * torch.arange(1, made.numel() + 1).view_as(made)).sum()
    return [made.detach(), *torch.autograd.grad(weighed, [one for one in mine if one.requires_grad])]


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


@pytest.mark.parametrize("trains", [True, False], ids=["stacks train", "stacks are frozen"])
def test_they_are_compiled_once_for_any_number_of_tokens(trains):
    torch._dynamo.reset()
    compiled = torch.compile(by_groups, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for tokens in (7, 11, 13):
            inputs, groups = drawn_groups(tokens, 2, 4, width=16, inside=8, seed=tokens)
            found = with_gradients(compiled, inputs, groups, stacks=trains)
            for one, wanted in zip(found, with_gradients(by_groups, inputs, groups, stacks=trains), strict=True):
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
    saved = []
    with saved_tensors_hooks(lambda one: saved.append(one.shape) or one, lambda one: one):
        rows = linear_to_experts(tokens, stacks[0].requires_grad_(trains), groups)
        made = linear_from_experts(rows, stacks[1].requires_grad_(trains), groups, 7)
    assert (torch.Size([14, 16]) in saved, torch.Size([14, 8]) in saved) == (trains, trains)
    with Operators() as operators:
        made.sum().backward()
    assert operators.calls[torch.ops.echorl.grouped_outer.default] == (2 if trains else 0)
    assert operators.calls[torch.ops.echorl.grouped_product.default] == 2
    assert all((stack.grad is not None) == trains for stack in stacks)


GEMM_CONFIG = "def GemmConfig(**options):\n    return options\n"
INTERFACE = """
from types import SimpleNamespace

def fn(left, right, into, *, A_idx=None, config=None, cu_seqlens_m=None, cu_seqlens_k=None):
    bounds = (cu_seqlens_k if cu_seqlens_m is None else cu_seqlens_m).tolist()
    for group, (begin, end) in enumerate(zip(bounds, bounds[1:])):
        places = slice(begin, end) if A_idx is None else A_idx[begin:end].long()
        if cu_seqlens_m is None:
            into[group] = left[:, places] @ right[begin:end]
        else:
            into[begin:end] = left[places] @ right[group]
    CHANGE

gemm_tuned = SimpleNamespace(fn=fn)
"""


@pytest.mark.parametrize(
    ("change", "config", "chosen"),
    [
        ("pass", GEMM_CONFIG, "quack"),
        ("into *= 1.1", GEMM_CONFIG, "torch grouped_mm"),
        ("into.fill_(float('nan'))", GEMM_CONFIG, "torch grouped_mm"),
        ("raise RuntimeError('no such device')", GEMM_CONFIG, "torch grouped_mm"),
        ("pass", "", "torch grouped_mm"),
        ("pass", "def GemmConfig(tile):\n    return tile\n", "torch grouped_mm"),
    ],
    ids=["right", "wrong", "not a number", "failing", "other names", "other arguments"],
)
def test_kernels_that_do_not_do_what_torchs_do_are_left_alone(tmp_path, monkeypatch, change, config, chosen):
    """A package as quack is, in slow."""
    package = tmp_path / "quack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "gemm.py").write_text("_gemm_plan_cache = dict.fromkeys(range(5000))\n")
    (package / "gemm_config.py").write_text(config)
    (package / "gemm_interface.py").write_text(INTERFACE.replace("CHANGE", change))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("quack", "quack.gemm", "quack.gemm_config", "quack.gemm_interface", "echorl_trainer.quack_products"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(grouped_products, "_kernels", None)
    with structlog.testing.capture_logs() as logs:
        try_quack(torch.device("cpu"), torch.bfloat16)
    assert products_name() == chosen
    assert [line["log_level"] for line in logs] == ([] if chosen == "quack" else ["warning"])
    if chosen == "quack":
        assert not sys.modules["quack.gemm"]._gemm_plan_cache
