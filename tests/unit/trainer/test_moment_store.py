"""Moments kept in fewer bits: what they take, and how far the path of the weights is from float32's."""

import pytest
import torch
from torch import nn

from echorl_core.config import OptimizerConfig
from echorl_trainer.optimizer import build_optimizer

ROWS, COLUMNS = 8, 600


class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(ROWS, COLUMNS))
        self.bias = nn.Parameter(torch.zeros(COLUMNS))


def problem(within):
    """A target for each weight, and curvatures of four decades over all rows, ``within`` of them in each row."""
    generator = torch.Generator().manual_seed(3)
    target = torch.randn(ROWS, COLUMNS, generator=generator)
    lowest = -2 + (4 - within) * torch.linspace(0, 1, ROWS)[:, None]
    curvature = 10.0 ** (lowest + within * torch.rand(ROWS, COLUMNS, generator=generator))
    return target, curvature


def path(steps=300, within=1, **settings):
    """The weights after every step of AdamW on the sum of curvature / 2 x (weight - target)^2."""
    target, curvature = problem(within)
    module = Weights()
    optimizer = build_optimizer(module, OptimizerConfig(lr=0.02, weight_decay=0.0, **settings))
    seen = []
    for _ in range(steps):
        module.matrix.grad = curvature * (module.matrix.detach() - target)
        module.bias.grad = module.bias.detach() - target[0]
        optimizer.step()
        seen.append(module.matrix.detach().clone())
    return torch.stack(seen), optimizer


def apart(found, wanted):
    """Largest distance on the way, as a share of the way that float32 went."""
    distance = (found - wanted).flatten(1).norm(dim=1)
    return float(distance.max() / wanted[-1].norm())


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 0.01), ("int8", 0.05)])
def test_the_path_stays_near_that_of_float32_and_ends_at_the_same_place(dtype, bound):
    wanted, _ = path()
    found, _ = path(state_dtype=dtype)
    assert 0 < apart(found, wanted) <= bound
    target, _ = problem(1)
    assert float((wanted[-1] - target).abs().max()) < 0.05, "float32 arrives"
    assert float((found[-1] - target).abs().mean()) < 0.02


def test_eight_bits_lag_where_one_block_spans_four_decades():
    """Squares below 3e-7 of their block's largest are raised to it, and their weights move more slowly."""
    wanted, _ = path(within=4)
    found, _ = path(within=4, state_dtype="int8")
    assert apart(found, wanted) <= 0.25
    assert bool(((found[-1] - wanted[-1]).abs() <= wanted[-1].abs() + 0.1).all()), "none goes astray"


def test_host_memory_and_float32_change_no_bit_but_those_of_the_fused_sum():
    wanted, _ = path(steps=20)
    found, _ = path(steps=20, cpu_offload=True)
    assert apart(found, wanted) < 1e-6


@pytest.mark.parametrize(
    ("dtype", "matrix"),
    [
        ("bfloat16", 2 * ROWS * COLUMNS * 2),
        # A byte each, and a float32 per block of 256: three in a row of 600.
        ("int8", 2 * (ROWS * COLUMNS + ROWS * 3 * 4)),
    ],
)
def test_state_takes_what_it_should_and_vectors_stay_float32(dtype, matrix):
    _, optimizer = path(steps=1, state_dtype=dtype)
    (of_matrix, of_bias) = (optimizer.state[group["params"][0]] for group in optimizer.param_groups)
    sizes = [value.nbytes for name, value in of_matrix.items() if name != "step"]
    assert sum(sizes) == matrix
    assert {value.dtype for name, value in of_bias.items() if name != "step"} == {torch.float32}


def test_rows_are_worked_on_in_pieces_alike(monkeypatch):
    whole, _ = path(steps=3, state_dtype="int8")
    monkeypatch.setattr("echorl_trainer.moment_store._AT_ONCE", 2 * COLUMNS)
    parts, _ = path(steps=3, state_dtype="int8")
    assert torch.equal(whole, parts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_the_first_step_is_exact_in_every_precision(dtype):
    """It computes from the gradient alone: lr g / (|g| + eps)."""
    config = OptimizerConfig(lr=0.1, weight_decay=0.0, eps=0.5, state_dtype=dtype)
    module = Weights()
    optimizer = build_optimizer(module, config)
    gradient = torch.linspace(-1, 1, ROWS * COLUMNS).view(ROWS, COLUMNS)
    module.matrix.grad = gradient
    optimizer.step()
    torch.testing.assert_close(module.matrix.detach(), -0.1 * gradient / (gradient.abs() + 0.5))
