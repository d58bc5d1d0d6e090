"""Optimizer groups, updates on hand numbers, and the learning rate as a function of the step."""

import math

import pytest
import torch
from torch import nn

from echorl_core.config import OptimizerConfig
from echorl_trainer.optimizer import build_optimizer, build_schedule


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.tensor([[2.0]]))
        self.scale = nn.Parameter(torch.tensor([3.0]))


def stepped(config, gradient=0.5):
    module = Two()
    optimizer = build_optimizer(module, config)
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()
    return module.matrix.item(), module.scale.item()


def test_sgd_by_hand():
    matrix, scale = stepped(OptimizerConfig(type="sgd", lr=0.1, weight_decay=0.2))
    assert matrix == pytest.approx(2 - 0.1 * (0.5 + 0.2 * 2))
    assert scale == pytest.approx(3 - 0.1 * 0.5)


def test_adamw_by_hand():
    """The first step moves by lr * g / (|g| + eps); decay is separate and leaves one-dimensional parameters alone."""
    matrix, scale = stepped(OptimizerConfig(lr=0.1, weight_decay=0.2, eps=0.5))
    assert matrix == pytest.approx(2 * (1 - 0.1 * 0.2) - 0.1 * 0.5 / (0.5 + 0.5))
    assert scale == pytest.approx(3 - 0.1 * 0.5 / (0.5 + 0.5))


def test_sign_sgd_by_hand():
    config = OptimizerConfig(type="signSgd", lr=0.1, weight_decay=0.2)
    assert stepped(config, gradient=0.5) == pytest.approx((2 - 0.1 * (1 + 0.2 * 2), 3 - 0.1))
    assert stepped(config, gradient=-7.0) == pytest.approx((2 - 0.1 * (-1 + 0.2 * 2), 3 + 0.1))
    assert stepped(config, gradient=0.0) == pytest.approx((2 - 0.1 * 0.2 * 2, 3))


def test_muon_leaves_what_is_no_layers_matrix_to_adamw():
    for gradient in (0.5, -3.0):
        muon, adamw = (stepped(OptimizerConfig(type=kind, lr=0.1, eps=0.5), gradient) for kind in ("muon", "adamw"))
        assert muon == pytest.approx(adamw)


def test_betas_are_the_configured_ones():
    assert build_optimizer(Two(), OptimizerConfig(betas=(0.8, 0.7))).param_groups[0]["betas"] == (0.8, 0.7)


def schedule(max_steps=12, **settings):
    config = OptimizerConfig(lr=1.0, **settings)
    return build_schedule(build_optimizer(Two(), config), config, max_steps)


def test_constant_after_warmup():
    found = schedule(warmup_steps=4)
    assert [found.lr(step) for step in (1, 2, 4, 5, 12, 100)] == [0.25, 0.5, 1.0, 1.0, 1.0, 1.0]


def test_linear_falls_to_its_floor():
    found = schedule(schedule="linear", warmup_steps=2, min_lr_ratio=0.1)
    assert [found.lr(step) for step in (1, 2, 7, 12, 50)] == pytest.approx([0.5, 1.0, 0.55, 0.1, 0.1])


def test_cosine_falls_to_its_floor():
    found = schedule(schedule="cosine", max_steps=11, min_lr_ratio=0.2)
    assert found.lr(1) == 1.0
    assert found.lr(6) == pytest.approx(0.6)
    assert found.lr(11) == pytest.approx(0.2)
    assert found.lr(3) == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * 0.2)))


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("max_steps", [0, 1, 3])
def test_short_runs_have_a_finite_rate(kind, max_steps):
    found = schedule(schedule=kind, warmup_steps=3, max_steps=max_steps, min_lr_ratio=0.1)
    assert all(0 < found.lr(step) <= 1 for step in range(1, 8))


def test_the_rate_depends_on_the_step_alone():
    """A resumed run, which never saw the earlier steps, gets the same rates."""
    first, resumed = schedule(schedule="cosine", warmup_steps=3), schedule(schedule="cosine", warmup_steps=3)
    rates = [first.apply(step) for step in range(1, 13)]
    assert [resumed.apply(step) for step in range(7, 13)] == rates[6:]
    assert {group["lr"] for group in resumed.optimizer.param_groups} == {rates[-1]}


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup_steps", [0, 1])
def test_the_only_step_of_a_run_trains(kind, warmup_steps):
    config = OptimizerConfig(lr=0.5, schedule=kind, warmup_steps=warmup_steps)
    schedule = build_schedule(build_optimizer(torch.nn.Linear(1, 1), config), config, max_steps=1)
    assert schedule.lr(1) == 0.5
    assert schedule.lr(2) == (0.5 if kind == "constant" else 0.0)
