"""Losses on numbers, against loops in float64, and the mistakes that such losses invite."""

import math

import pytest
import torch

from echorl_trainer.losses import cross_entropy_loss, dppo_loss, graph_anchor

SETTINGS = {"mask_low": 0.2, "mask_high": 0.2, "kl_tau": 1e-3}


def tokens(count, seed=0):
    """policy, sampler, advantages, weights; some weights, some advantages and some moves are zero."""
    generator = torch.Generator().manual_seed(seed)
    policy = -4 * torch.rand(count, generator=generator)
    sampler = policy + torch.randn(count, generator=generator)
    sampler = sampler.clamp(max=-1e-3)
    advantages = torch.randn(count, generator=generator) * (torch.rand(count, generator=generator) > 0.2)
    weights = torch.rand(count, generator=generator) * (torch.rand(count, generator=generator) > 0.3)
    return policy, sampler, advantages, weights


def dppo_by_hand(policy, sampler, advantages, weights, *, mask_low, mask_high, kl_tau, denominator):
    """Loss, gradient and dropped tokens, one token at a time in Python floats."""
    loss, gradient, low, high = 0.0, [], 0, 0
    for lp, lq, advantage, weight in zip(policy, sampler, advantages, weights, strict=True):
        if weight == 0:
            gradient.append(0.0)
            continue
        moved = math.exp(lp) - math.exp(lq)
        is_high = advantage > 0 and moved > mask_high
        is_low = advantage <= 0 and moved < -mask_low
        keep = 0.0 if is_high or is_low else 1.0
        ratio = math.exp(lp - lq)
        loss += weight * (-keep * advantage * ratio + kl_tau * (lp - lq) ** 2)
        gradient.append(weight * (-keep * advantage * ratio + 2 * kl_tau * (lp - lq)) / denominator)
        low, high = low + is_low, high + is_high
    return loss / denominator, gradient, low, high


@pytest.mark.parametrize("kl_tau", [1e-3, 0.5])
def test_dppo_matches_a_loop_in_float64(kl_tau):
    columns = tokens(400)
    policy = columns[0].clone().requires_grad_()
    settings = {**SETTINGS, "kl_tau": kl_tau, "denominator": 123.0}
    output = dppo_loss(policy, *columns[1:], **settings)
    output.loss.backward()
    value, gradient, low, high = dppo_by_hand(*(column.double().tolist() for column in columns), **settings)
    assert low > 5
    assert high > 5
    assert output.metrics["dropped_low"].sum() == low
    assert output.metrics["dropped_high"].sum() == high
    assert output.loss.item() == pytest.approx(value, rel=1e-6, abs=1e-6)
    torch.testing.assert_close(policy.grad.double(), torch.tensor(gradient, dtype=torch.float64), rtol=1e-6, atol=1e-8)


def test_cross_entropy_matches_a_loop_in_float64():
    policy, _, _, weights = tokens(200, seed=1)
    policy.requires_grad_()
    output = cross_entropy_loss(policy, weights, denominator=37.0)
    output.loss.backward()
    pairs = zip(policy.tolist(), weights.tolist(), strict=True)
    assert output.loss.item() == pytest.approx(-sum(w * lp for lp, w in pairs) / 37.0, rel=1e-6)
    assert torch.equal(policy.grad, -weights / 37.0)


def test_gradient_of_an_echo_token_is_exactly_minus_alpha_over_the_denominator():
    logprobs = torch.tensor([-1.0, -9.0, -0.1, -3.0], requires_grad=True)
    weights = torch.tensor([0.0, 0.05, 0.0, 0.05])
    cross_entropy_loss(logprobs, weights, denominator=2.0).loss.backward()
    assert logprobs.grad.tolist() == [0.0, -torch.tensor(0.05).item() / 2, 0.0, -torch.tensor(0.05).item() / 2]


def test_supervised_tokens_keep_their_gradient_next_to_rl_tokens():
    """Routing both through one masked log ratio once zeroed the supervised half."""
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    rl, ce = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.1])
    advantages = torch.tensor([0.5, 0.0])
    loss = dppo_loss(logprobs, torch.tensor([-1.0, 0.0]), advantages, rl, **SETTINGS, denominator=1.0).loss
    (loss + cross_entropy_loss(logprobs, ce, denominator=4.0).loss).backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([-0.5, -0.025]))


def test_placeholder_logprobs_of_unsampled_tokens_are_not_tested_for_trust():
    """A prompt or ECHO token has no engine logprob; its 0 looks like probability 1 and would count as dropped."""
    policy = torch.tensor([-6.0, -6.0], requires_grad=True)
    output = dppo_loss(policy, torch.zeros(2), torch.zeros(2), torch.zeros(2), **SETTINGS, denominator=1.0)
    assert not output.metrics["dropped_low"].any()
    assert not output.metrics["ratio"].any()
    assert float(output.loss.detach()) == 0.0


def test_one_denominator_divides_once():
    """Dividing by a sample's count and by the batch's made ECHO too small by the number of samples."""
    logprobs = torch.full((8,), -2.0)
    together = cross_entropy_loss(logprobs, torch.ones(8), denominator=8.0).loss
    halves = sum(
        cross_entropy_loss(logprobs[part], torch.ones(4), denominator=8.0).loss for part in (slice(0, 4), slice(4, 8))
    )
    assert float(together) == pytest.approx(2.0)
    assert float(halves) == pytest.approx(2.0)


def test_weight_zero_takes_a_token_out_whatever_its_advantage():
    policy = torch.tensor([-1.0], requires_grad=True)
    dppo_loss(
        policy, torch.tensor([-2.0]), torch.tensor([5.0]), torch.zeros(1), **SETTINGS, denominator=1.0
    ).loss.backward()
    assert policy.grad.tolist() == [0.0]


def test_zero_advantage_uses_the_low_test():
    policy, sampler = torch.tensor([-5.0, -0.1]), torch.tensor([-0.1, -5.0])
    output = dppo_loss(policy, sampler, torch.zeros(2), torch.ones(2), **SETTINGS, denominator=1.0)
    assert output.metrics["dropped_low"].tolist() == [1.0, 0.0]
    assert output.metrics["dropped_high"].tolist() == [0.0, 0.0]


def test_dropped_tokens_keep_their_penalty_and_lose_their_gain():
    policy = torch.tensor([-0.1], requires_grad=True)
    sampler = torch.tensor([-5.0])
    dppo_loss(policy, sampler, torch.ones(1), torch.ones(1), **SETTINGS, denominator=1.0).loss.backward()
    assert float(policy.grad) == pytest.approx(2 * 1e-3 * 4.9, rel=1e-5)


def test_weight_multiplies_gain_and_penalty():
    columns = tokens(50, seed=3)[:3]
    once = dppo_loss(*columns, torch.ones(50), **SETTINGS, denominator=7.0).loss
    thrice = dppo_loss(*columns, torch.full((50,), 3.0), **SETTINGS, denominator=7.0).loss
    assert float(thrice) == pytest.approx(3 * float(once), rel=1e-5)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_masked_infinities_do_not_reach_values_or_gradients(bad):
    policy = torch.tensor([-1.0, bad], requires_grad=True)
    sampler = torch.tensor([-1.5, bad])
    weights = torch.tensor([1.0, 0.0])
    rl = dppo_loss(policy, sampler, torch.tensor([1.0, bad]), weights, **SETTINGS, denominator=1.0)
    ce = cross_entropy_loss(policy, weights, denominator=1.0)
    (rl.loss + ce.loss + graph_anchor(policy)).backward()
    assert torch.isfinite(rl.loss)
    assert torch.isfinite(ce.loss)
    assert torch.isfinite(policy.grad).all()
    assert float(policy.grad[1]) == 0.0
    assert all(torch.isfinite(values).all() for values in rl.metrics.values())


def test_a_dropped_token_whose_ratio_overflows_gives_no_nan():
    policy = torch.tensor([-0.01], requires_grad=True)
    output = dppo_loss(policy, torch.tensor([-100.0]), torch.ones(1), torch.ones(1), **SETTINGS, denominator=1.0)
    output.loss.backward()
    assert output.metrics["dropped_high"].tolist() == [1.0]
    assert torch.isfinite(policy.grad).all()


def test_micro_batches_add_up():
    columns = tokens(120, seed=4)
    whole = dppo_loss(*columns, **SETTINGS, denominator=99.0).loss
    parts = [
        dppo_loss(*(column[begin : begin + 30] for column in columns), **SETTINGS, denominator=99.0).loss
        for begin in range(0, 120, 30)
    ]
    assert float(sum(parts)) == pytest.approx(float(whole), rel=1e-6)


def test_metrics_carry_no_gradient():
    policy = torch.tensor([-1.0], requires_grad=True)
    output = dppo_loss(policy, torch.tensor([-1.2]), torch.ones(1), torch.ones(1), **SETTINGS, denominator=1.0)
    assert not any(values.requires_grad for values in output.metrics.values())
    assert float(output.metrics["ratio"]) == pytest.approx(math.exp(0.2))
    assert float(output.metrics["mismatch_kl"]) == pytest.approx(math.exp(0.2) - 0.2 - 1, rel=1e-4)


@pytest.mark.parametrize("denominator", [0.0, -1.0, math.nan])
def test_a_component_without_a_denominator_is_refused(denominator):
    one = torch.ones(1)
    with pytest.raises(ValueError, match="denominator"):
        cross_entropy_loss(one, one, denominator=denominator)
    with pytest.raises(ValueError, match="denominator"):
        dppo_loss(one, one, one, one, **SETTINGS, denominator=denominator)


def test_no_tokens_at_all():
    nothing = torch.zeros(0, requires_grad=True)
    loss = dppo_loss(nothing, nothing, nothing, nothing, **SETTINGS, denominator=3.0).loss
    loss = loss + cross_entropy_loss(nothing, nothing, denominator=3.0).loss + graph_anchor(nothing)
    loss.backward()
    assert loss.item() == 0.0
