"""Every policy-gradient loss: on numbers by hand, against float64, and what must hold whatever the formula."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from echorl_core.config import LossConfig
from echorl_testing.trainer.loss_oracle import DEFAULTS, expected
from echorl_trainer.losses import (
    PolicyTokens,
    RlSequences,
    cispo_loss,
    cross_entropy_loss,
    dppo_loss,
    graph_anchor,
    grpo_loss,
    ipo_loss,
    policy_loss,
    reinforce_loss,
)

LOSSES = {
    "dppo": dppo_loss,
    "ipo": ipo_loss,
    "grpo": grpo_loss,
    "cispo": cispo_loss,
    "reinforce": reinforce_loss,
}
LOW_AND_HIGH = {
    "dppo": ("dropped_low", "dropped_high"),
    "ipo": ("dropped_low", "dropped_high"),
    "grpo": ("dropped_low", "dropped_high"),
    "cispo": ("is_clipped_low", "is_clipped_high"),
}

every_loss = pytest.mark.parametrize("kind", LOSSES)


def run(kind, columns, *, denominator=1.0, **changed):
    """Loss, gradient by the policy's logprobs, and metrics."""
    policy = columns[0].clone().requires_grad_()
    output = LOSSES[kind](policy, *columns[1:], **DEFAULTS[kind] | changed, denominator=denominator)
    output.loss.backward()
    return output.loss.detach(), policy.grad, output.metrics


def columns_of(*tokens):
    """Policy, sampler, advantage and weight of each token, as four columns."""
    return tuple(torch.tensor(column) for column in zip(*tokens, strict=True))


def random_columns(count, seed=0):
    """Some weights and some advantages are zero; ratios are on both sides of every bound."""
    generator = torch.Generator().manual_seed(seed)
    policy = -3 * torch.rand(count, generator=generator)
    sampler = (policy + 0.5 * torch.randn(count, generator=generator)).clamp(max=-1e-3)
    advantages = torch.randn(count, generator=generator) * (torch.rand(count, generator=generator) > 0.2)
    weights = torch.rand(count, generator=generator) * (torch.rand(count, generator=generator) > 0.3)
    return policy, sampler, advantages, weights


def log(value):
    return math.log(value)


# One token each: policy and sampler probability, advantage -> value and slope, with kl_tau 0.1.
BY_HAND = [
    # Rose from 0.2 to 0.4: ratio 2, moved 0.2. penalty 0.1 log(2)^2, its slope 0.2 log(2).
    ("dppo", 0.4, 0.2, 3.0, {"mask_high": 0.19}, 0.0, 0.0),
    ("dppo", 0.4, 0.2, 3.0, {"mask_high": 0.21}, -6.0, -6.0),
    ("dppo", 0.4, 0.2, -3.0, {"mask_high": 0.19}, 6.0, 6.0),
    ("ipo", 0.4, 0.2, 3.0, {"mask_high": 0.19}, 0.0, 0.0),
    ("ipo", 0.4, 0.2, -3.0, {"mask_high": 0.19}, 0.0, 0.0),
    ("ipo", 0.4, 0.2, -3.0, {"mask_high": 0.21, "mask_low": 0.0}, 6.0, 6.0),
    ("ipo", 0.2, 0.4, 3.0, {"mask_low": 0.19}, 0.0, 0.0),
    ("ipo", 0.2, 0.4, 3.0, {"mask_low": 0.21}, -1.5, -1.5),
    ("grpo", 0.4, 0.2, 3.0, {"clip_high": 0.5}, -4.5, 0.0),
    ("grpo", 0.4, 0.2, 3.0, {"clip_high": 1.5}, -6.0, -6.0),
    ("grpo", 0.4, 0.2, -3.0, {"clip_high": 0.5}, 6.0, 6.0),
    ("grpo", 0.2, 0.4, -3.0, {"clip_low": 0.2}, 2.4, 0.0),
    ("grpo", 0.2, 0.4, 3.0, {"clip_low": 0.2}, -1.5, -1.5),
    ("cispo", 0.4, 0.2, 3.0, {"clip_high": 0.5}, -4.5 * log(0.4), -4.5),
    ("cispo", 0.4, 0.2, 3.0, {"clip_high": 1.5}, -6.0 * log(0.4), -6.0),
    ("cispo", 0.2, 0.4, -3.0, {"clip_low": 0.2}, 2.4 * log(0.2), 2.4),
    ("cispo", 0.2, 0.4, -3.0, {"clip_low": 1.0}, 1.5 * log(0.2), 1.5),
    ("reinforce", 0.4, 0.2, 3.0, {}, -3.0 * log(0.4), -3.0),
    ("reinforce", 0.2, 0.4, -3.0, {}, 3.0 * log(0.2), 3.0),
]


@pytest.mark.parametrize(("kind", "policy", "sampler", "advantage", "bounds", "gain", "slope"), BY_HAND)
def test_one_token_by_hand(kind, policy, sampler, advantage, bounds, gain, slope):
    columns = columns_of((log(policy), log(sampler), advantage, 0.5))
    loss, gradient, metrics = run(kind, columns, denominator=4.0, kl_tau=0.1, **bounds)
    distance = log(policy / sampler)
    assert float(loss) == pytest.approx((gain + 0.1 * distance**2) / 8, rel=1e-6)
    assert float(gradient) == pytest.approx((slope + 0.2 * distance) / 8, rel=1e-6)
    assert float(metrics["ratio"]) == pytest.approx(policy / sampler, rel=1e-6)
    assert float(metrics["mismatch_kl"]) == pytest.approx(policy / sampler - distance - 1, rel=1e-5)


@every_loss
@pytest.mark.parametrize("kl_tau", [0.0, 1e-3, 0.5])
def test_matches_a_loop_in_float64(kind, kl_tau):
    columns = random_columns(600)
    loss, gradient, metrics = run(kind, columns, denominator=123.0, kl_tau=kl_tau)
    tokens = zip(*(column.double().tolist() for column in columns), strict=True)
    wanted = expected(kind, tokens, denominator=123.0, **DEFAULTS[kind] | {"kl_tau": kl_tau})
    assert abs(float(loss) - wanted.loss) <= 1e-6 * wanted.size
    reference = torch.tensor(wanted.gradient, dtype=torch.float64)
    assert (gradient.double() - reference).abs().max() <= 1e-6 * reference.abs().max()
    if kind != "reinforce":
        low, high = (float(metrics[name].sum()) for name in LOW_AND_HIGH[kind])
        assert (low, high) == (wanted.low, wanted.high)
        assert high > 5
        assert low > 5 or kind == "cispo"


def small_floats(low, high):
    return st.floats(low, high, width=32, allow_subnormal=False)


token = st.tuples(small_floats(-8, -0.015625), small_floats(-8, -0.015625), small_floats(-4, 4), small_floats(0, 2))
some_tokens = st.lists(token, min_size=1, max_size=24)


@every_loss
@given(tokens=some_tokens, data=st.data())
@settings(max_examples=40, deadline=None)
def test_order_and_split_do_not_matter(kind, tokens, data):
    order = data.draw(st.permutations(range(len(tokens))))
    cut = data.draw(st.integers(0, len(tokens)))
    columns = columns_of(*tokens)
    whole, gradient, _ = run(kind, columns, denominator=7.0)
    size = expected(kind, tokens, denominator=7.0, **DEFAULTS[kind]).size
    shuffled, moved, _ = run(kind, tuple(column[order] for column in columns), denominator=7.0)
    assert torch.equal(moved, gradient[order])
    assert float(shuffled) == pytest.approx(float(whole), abs=2e-6 * size)
    parts = [tuple(column[part] for column in columns) for part in (slice(0, cut), slice(cut, None))]
    halves = [run(kind, part, denominator=7.0) for part in parts if len(part[0])]
    assert torch.equal(torch.cat([half[1] for half in halves]), gradient)
    assert sum(float(half[0]) for half in halves) == pytest.approx(float(whole), abs=2e-6 * size)


anything = st.sampled_from([math.nan, math.inf, -math.inf, -1e30, 3e38, 0.0, -1.0])


@every_loss
@given(tokens=some_tokens, garbage=st.lists(st.tuples(anything, anything, anything), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_tokens_of_weight_zero_never_influence_anything(kind, tokens, garbage):
    whole, gradient, metrics = run(kind, columns_of(*tokens))
    columns = columns_of(*tokens, *((*values, 0.0) for values in garbage))
    padded, wider, more = run(kind, columns)
    count = len(tokens)
    assert float(padded) == pytest.approx(float(whole), rel=1e-5, abs=1e-6)
    assert torch.equal(wider[:count], gradient)
    assert not wider[count:].any()
    for name, values in metrics.items():
        assert torch.equal(more[name][:count], values)
        assert not more[name][count:].any()


@every_loss
@pytest.mark.parametrize("count", [0, 5])
def test_nothing_but_filtered_tokens_is_a_zero_with_a_gradient(kind, count):
    columns = (*random_columns(count)[:3], torch.zeros(count))
    loss, gradient, metrics = run(kind, columns, denominator=3.0)
    assert float(loss) == 0.0
    assert gradient.shape == (count,)
    assert not gradient.any()
    assert all(not values.any() for values in metrics.values())


@every_loss
def test_a_ratio_that_overflows_gives_no_nan_unless_it_trains(kind):
    """A token that the bounds silence must not poison the step; one that trains must stop it."""
    _, gradient, _ = run(kind, columns_of((-0.01, -100.0, 1.0, 1.0)))
    assert torch.isfinite(gradient).all()
    loss, _, _ = run(kind, columns_of((math.nan, -1.0, 1.0, 1.0)))
    assert not math.isfinite(float(loss))


@every_loss
def test_an_infinite_advantage_is_seen(kind):
    loss, gradient, _ = run(kind, columns_of((-1.0, -1.0, math.nan, 1.0)))
    assert not math.isfinite(float(loss))
    assert not torch.isfinite(gradient).all()


@every_loss
def test_echo_adds_to_every_loss(kind):
    """Their gradients add where both train, and neither changes the other where only one does."""
    policy, sampler, advantages, _ = random_columns(3)
    rl, ce = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0.0, 0.1, 0.1])
    alone = run(kind, (policy, sampler, advantages, rl), denominator=2.0)[1]
    both = policy.clone().requires_grad_()
    loss = LOSSES[kind](both, sampler, advantages, rl, **DEFAULTS[kind], denominator=2.0).loss
    (loss + cross_entropy_loss(both, ce, denominator=5.0).loss + graph_anchor(both)).backward()
    torch.testing.assert_close(both.grad, alone - ce / 5.0, rtol=1e-6, atol=0)


@every_loss
def test_metrics_carry_no_gradient(kind):
    policy = torch.tensor([-1.0], requires_grad=True)
    one = torch.ones(1)
    output = LOSSES[kind](policy, -one, one, one, **DEFAULTS[kind], denominator=1.0)
    assert not any(values.requires_grad for values in output.metrics.values())


@every_loss
@pytest.mark.parametrize("denominator", [0.0, -1.0, math.nan])
def test_a_denominator_that_is_not_positive_is_refused(kind, denominator):
    with pytest.raises(ValueError, match="denominator"):
        run(kind, random_columns(2), denominator=denominator)


@every_loss
def test_the_config_names_the_loss_and_its_settings(kind):
    columns = random_columns(50)
    wanted = LOSSES[kind](*columns, **DEFAULTS[kind] | {"kl_tau": 0.25}, denominator=9.0).loss
    config = LossConfig(type=kind, **DEFAULTS[kind] | {"kl_tau": 0.25})
    nowhere = RlSequences(torch.zeros(0, dtype=torch.int64), [], [], [])
    found = policy_loss(config)
    assert torch.equal(found(PolicyTokens(*columns, nowhere), denominator=9.0).loss, wanted)
    assert not found.name


def mixed(count=600, seed=3):
    """Random tokens of six sequences by turns of two environments; about a third have no weight."""
    columns = random_columns(count, seed)
    rows = columns[3].nonzero()[:, 0]
    size = count // 6
    lengths = [int(((rows >= start) & (rows < start + size)).sum()) for start in range(0, count, size)]
    names = ["a", "b"] * 3
    inside = torch.tensor([names[index // size] == "b" for index in range(count)])
    return columns, RlSequences(rows, lengths, names, [f"e/{index}" for index in range(6)]), inside


def test_environments_with_a_loss_of_their_own_are_trained_by_it_alone():
    columns, sequences, inside = mixed()
    policy = columns[0].clone().requires_grad_()
    loss = policy_loss(LossConfig(), own={"b": LossConfig(type="grpo", **DEFAULTS["grpo"])})
    output = loss(PolicyTokens(policy, *columns[1:], sequences), denominator=7.0)
    output.loss.backward()
    expected_loss, expected_gradient = 0.0, torch.zeros(len(inside))
    for kind, part in (("dppo", ~inside), ("grpo", inside)):
        one, gradient, _ = run(kind, (*columns[:3], columns[3] * part), denominator=7.0)
        expected_loss, expected_gradient = expected_loss + one, expected_gradient + gradient
    torch.testing.assert_close(output.loss.detach(), expected_loss)
    assert torch.equal(policy.grad, expected_gradient)
    assert output.metrics["ratio"][columns[3] == 0].abs().max() == 0


def test_an_environment_that_is_not_there_changes_nothing():
    columns, sequences, _ = mixed()
    alone, shared = (
        policy_loss(LossConfig(), own=own)(PolicyTokens(columns[0], *columns[1:], sequences), denominator=7.0)
        for own in (None, {"c": LossConfig(type="reinforce")})
    )
    assert torch.equal(alone.loss, shared.loss)
    assert all(torch.equal(values, shared.metrics[name]) for name, values in alone.metrics.items())


def test_a_micro_batch_without_trained_tokens_still_runs_every_loss():
    policy = torch.tensor([-1.0, -2.0], requires_grad=True)
    nothing = RlSequences(torch.zeros(0, dtype=torch.int64), [], [], [])
    columns = (policy, policy.detach(), torch.ones(2), torch.zeros(2))
    loss = policy_loss(LossConfig(), own={"b": LossConfig(type="cispo", clip_low=1.0)})
    loss(PolicyTokens(*columns, nothing), denominator=1.0).loss.backward()
    assert policy.grad.tolist() == [0.0, 0.0]
