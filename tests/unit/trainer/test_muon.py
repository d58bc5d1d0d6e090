"""Muon on hand numbers, against AdamW and a float64 reference, and which parameters it takes."""

import math

import pytest
import torch
from torch import nn

from echorl_core.config import OptimizerConfig
from echorl_testing.orchestrator.packs import tiny_policy
from echorl_trainer.muon import Muon, newton_schulz
from echorl_trainer.optimizer import build_optimizer


def brought_near_one(value):
    """A singular value after the five iterations."""
    for _ in range(5):
        value = 3.4445 * value - 4.7750 * value**3 + 2.0315 * value**5
    return value


def muon(matrix, *others, lr=0.1, weight_decay=0.0):
    groups = [{"params": list(others), "weight_decay": weight_decay}] if others else []
    return Muon([matrix], groups, lr=lr, weight_decay=weight_decay, betas=(0.9, 0.95), eps=1e-8)


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (3, 2)])
def test_singular_values_by_hand(shape):
    """diag(3, 4) has norm 5, so each singular value goes its own way from 0.6 and 0.8; zeros stay zeros."""
    matrix, wanted = torch.zeros(shape), torch.zeros(shape)
    matrix[0, 0], matrix[1, 1] = 3.0, -4.0
    wanted[0, 0], wanted[1, 1] = brought_near_one(0.6), -brought_near_one(0.8)
    torch.testing.assert_close(newton_schulz(matrix), wanted, rtol=1e-5, atol=1e-6)
    assert 0.7 < brought_near_one(0.6) < 1.2


def test_any_matrix_keeps_its_directions():
    """U V^T in float64 by a singular value decomposition, with the values mapped one by one."""
    matrix = torch.randn(6, 9, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    mapped = torch.tensor([brought_near_one(value) for value in (values / values.norm()).tolist()]).double()
    torch.testing.assert_close(newton_schulz(matrix), left @ torch.diag(mapped) @ right)


def test_zeros_stay_zeros():
    assert not newton_schulz(torch.zeros(3, 2)).any()


def test_two_steps_by_hand():
    """Nesterov momentum 0.95, decay 0.5, factor 0.2 sqrt(2); lr 0.1. NS maps one row to its direction's image of 1."""
    matrix = nn.Parameter(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    optimizer = muon(matrix, weight_decay=0.5)
    rate, one = 0.1 * 0.2 * math.sqrt(2), brought_near_one(1.0)
    matrix.grad = torch.tensor([[0.6, 0.8], [0.0, 0.0]])
    optimizer.step()
    first = [0.95 * 3 - rate * one * 0.6, 0.95 * 4 - rate * one * 0.8]
    assert matrix[0].tolist() == pytest.approx(first)
    matrix.grad = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    optimizer.step()
    momentum = [0.95 * 0.6, 0.95 * 0.8 + 1.0]
    along = [0.95 * momentum[0], 1.0 + 0.95 * momentum[1]]
    length = math.hypot(*along)
    second = [0.95 * old - rate * one * part / length for old, part in zip(first, along, strict=True)]
    assert matrix[0].tolist() == pytest.approx(second)
    assert not matrix[1].any()


def test_the_rest_moves_as_by_adamw():
    start = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer = muon(nn.Parameter(torch.zeros(2, 2)), ours, weight_decay=0.3)
    reference = torch.optim.AdamW([theirs], lr=0.1, betas=(0.9, 0.95), weight_decay=0.3)
    for seed in range(4):
        ours.grad = theirs.grad = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
        optimizer.step()
        reference.step()
    torch.testing.assert_close(ours, theirs)


def test_only_matrices_of_the_layers_are_orthogonalised(tmp_path):
    policy = tiny_policy(tmp_path / "m")
    optimizer = build_optimizer(policy, OptimizerConfig(type="muon", weight_decay=0.1))
    names = {parameter: name for name, parameter in policy.named_parameters()}
    groups = {True: set(), False: set()}
    for group in optimizer.param_groups:
        groups[group["orthogonal"]] |= {names[parameter] for parameter in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(names)
    assert groups[True] == {name for name in names.values() if ".layers." in name and "proj" in name}
    assert {"model.lm_head.weight", "model.model.embed_tokens.weight", "model.model.norm.weight"} <= groups[False]
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.1, 0.0}


def test_what_is_no_matrix_is_refused():
    with pytest.raises(ValueError, match=r"found a parameter of shape \(3,\), accepted are matrices"):
        muon(nn.Parameter(torch.zeros(3)))
