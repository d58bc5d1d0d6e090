"""Mode opd's loss: on numbers by hand, against float64, and through a step."""

import math

import msgspec
import numpy as np
import pytest
import torch

from echorl_core.config import LossConfig
from echorl_core.wire.batch import TokenRole
from echorl_testing.orchestrator.packs import denominators, document, learner, rank_batch
from echorl_trainer.losses import PolicyTokens, RlSequences, opd_loss, policy_loss
from echorl_trainer.probe import probe_logprobs

DEFAULTS = {"mask_low": 0.2, "kl_tau": 1e-3}


def run(*columns: torch.Tensor, denominator: float = 1.0, **changed: float):
    policy = columns[0].clone().requires_grad_()
    output = opd_loss(policy, *columns[1:], **{**DEFAULTS, **changed}, denominator=denominator)
    output.loss.backward()
    return output.loss.detach(), policy.grad, output.metrics


def log(*probabilities: float) -> torch.Tensor:
    return torch.tensor([math.log(value) for value in probabilities])


def test_by_hand():
    # Token 0: fresh, the teacher finds it twice as likely. Token 1: the teacher finds it half as likely, and it has
    # become likelier. Token 2: fell from 0.9 to 0.5, more than 0.2: no gain though the teacher wants it. Token 3: no
    # weight.
    policy, sampler = log(0.25, 0.6, 0.5, 0.1), log(0.25, 0.3, 0.9, 0.1)
    teacher = log(0.5, 0.3, 0.9, 0.9)
    weights = torch.tensor([1.0, 2.0, 1.0, 0.0])
    loss, gradient, metrics = run(policy, sampler, teacher, weights, denominator=4.0, kl_tau=0.0)
    two = math.log(2)
    assert loss.item() == pytest.approx((-two + 2 * two * 2) / 4)
    assert gradient.tolist() == pytest.approx([-two / 4, 2 * two * 2 / 4, 0.0, 0.0])
    assert metrics["teacher_kl"].tolist() == pytest.approx([-two, two, math.log(0.5 / 0.9), 0.0])
    assert metrics["dropped_low"].tolist() == [0.0, 0.0, 1.0, 0.0]
    assert metrics["dropped_high"].tolist() == [0.0] * 4


def test_the_mask_has_one_side():
    policy, sampler, teacher = log(0.9), log(0.1), log(0.99)
    _, gradient, metrics = run(policy, sampler, teacher, torch.ones(1), kl_tau=0.0)
    assert metrics["dropped_low"].item() == 0
    assert gradient.item() == pytest.approx(-math.log(0.99 / 0.9) * 9, rel=1e-5)


def test_against_float64():
    generator = torch.Generator().manual_seed(0)
    policy = -3 * torch.rand(2000, generator=generator)
    sampler = (policy + 0.5 * torch.randn(2000, generator=generator)).clamp(max=-1e-3)
    teacher = -4 * torch.rand(2000, generator=generator)
    weights = torch.rand(2000, generator=generator) * (torch.rand(2000, generator=generator) > 0.3)
    loss, gradient, metrics = run(policy, sampler, teacher, weights, denominator=77.0)
    total, size, slopes, dropped = 0.0, 0.0, [], 0
    for lp, lq, lt, w in zip(*(one.double().tolist() for one in (policy, sampler, teacher, weights)), strict=True):
        keep = w == 0 or math.exp(lp) - math.exp(lq) >= -0.2
        gain = (lt - lp) * math.exp(lp - lq) if keep else 0.0
        penalty = 1e-3 * (lp - lq) ** 2
        total += w * (penalty - gain) / 77
        size += w * (penalty + abs(gain)) / 77
        slopes.append(w * (2e-3 * (lp - lq) - gain) / 77)
        dropped += not keep
    assert abs(loss.item() - total) < 1e-6 * size
    torch.testing.assert_close(gradient.double(), torch.tensor(slopes, dtype=torch.float64), rtol=1e-5, atol=1e-9)
    assert 0 < dropped == metrics["dropped_low"].sum()


def test_on_fresh_samples_the_gradient_is_that_of_the_reverse_kl():
    """Exactly, in expectation: sum over a vocabulary of p * d(loss)/d(logits) = d KL(p || teacher) / d(logits)."""
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], requires_grad=True)
    teacher = torch.log_softmax(torch.tensor([1.0, 0.2, -0.5, 0.0]), 0)
    policy = torch.log_softmax(logits, 0)
    wanted = torch.autograd.grad((policy.exp() * (policy - teacher)).sum(), logits, retain_graph=True)[0]
    weights = policy.detach().exp()
    loss = opd_loss(policy, policy.detach(), teacher, weights, **DEFAULTS, denominator=1.0).loss
    found = torch.autograd.grad(loss, logits)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


def test_what_has_no_weight_reaches_nothing():
    bad = torch.tensor([-1.0, -math.inf])
    weights = torch.tensor([1.0, 0.0])
    loss, gradient, metrics = run(bad, torch.zeros(2), torch.tensor([-1.0, math.nan]), weights)
    assert math.isfinite(loss)
    assert gradient.isfinite().all()
    assert metrics["teacher_kl"].isfinite().all()


def sequences(*lengths: int) -> RlSequences:
    names = [f"e/{number}" for number in range(len(lengths))]
    return RlSequences(torch.arange(sum(lengths)), list(lengths), ["a"] * len(lengths), names)


def test_samples_that_nobody_judged_are_refused_and_dummies_are_not():
    loss = policy_loss(LossConfig(type="opd"))
    columns = (log(0.5).requires_grad_(), log(0.5), torch.zeros(1))
    with pytest.raises(ValueError, match=r"samples \['e/0'\]: mode opd needs the teacher's logprobs"):
        loss(PolicyTokens(*columns, torch.ones(1), sequences(1)), denominator=1.0)
    found = loss(PolicyTokens(*columns, torch.zeros(1), sequences()), denominator=1.0)
    found.loss.backward()
    assert columns[0].grad.tolist() == [0.0]


def test_the_batch_carries_the_teacher_to_the_gradient_and_to_the_metrics(tmp_path):
    """A policy that agrees with its teacher has nothing to learn; one that differs moves towards it."""
    micro = document(1, 12, echo=False)
    micro = msgspec.structs.replace(micro, temperature=np.ones(12, np.float32))
    totals = {"rl": float(micro.rl_weight.sum()), "ce": 0.0}
    with learner(tmp_path / "m", loss=LossConfig(type="opd", kl_tau=0.0)) as one:
        own = np.array([0.0, *probe_logprobs(one.policy, one.ranks, micro.token_ids.tolist())], np.float32)
        fresh = msgspec.structs.replace(
            micro, logprobs=np.where(micro.role == TokenRole.ACTION, own, 0).astype(np.float32)
        )
        agreed = one.runner.run(rank_batch([msgspec.structs.replace(fresh, ref_logprobs=own)], totals))
        assert agreed.metrics["optim/grad_norm"] == pytest.approx(0.0, abs=1e-5)
        assert agreed.metrics["teacher_kl/all"] == pytest.approx(0.0, abs=1e-5)
        led = one.runner.run(rank_batch([msgspec.structs.replace(fresh, ref_logprobs=own + 0.5)], totals))
    assert led.metrics["teacher_kl/a"] == pytest.approx(-0.5, abs=1e-4)
    assert led.metrics["optim/grad_norm"] > 0.01


def test_other_modes_have_no_teacher_metric(tmp_path):
    micro = document(1, 12)
    with learner(tmp_path / "m") as one:
        found = one.runner.run(rank_batch([micro], denominators([micro])))
    assert not any("teacher" in name for name in found.metrics)
