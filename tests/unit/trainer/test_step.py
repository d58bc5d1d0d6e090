"""One optimizer step on one rank: gradients, metrics, the logprob gap, and what stops it."""

import math

import msgspec
import numpy as np
import pytest
import torch
from torch.distributed.tensor import DTensor

from echorl_core.config import LossConfig, OptimizerConfig
from echorl_core.wire.batch import TokenRole
from echorl_testing.orchestrator.packs import (
    denominators,
    distance,
    document,
    joined,
    learner,
    packed,
    rank_batch,
    tiny_policy,
)
from echorl_trainer.former import FormerWeights
from echorl_trainer.probe import probe_logprobs
from echorl_trainer.step import NonFinite

LOSSES = ("dppo", "ipo", "grpo", "cispo", "reinforce")
DOCUMENTS = [document(seed, length) for seed, length in enumerate([9, 14, 9, 5, 20, 14, 7, 9], start=1)]
TOTALS = denominators(DOCUMENTS)


def in_four():
    return [joined(DOCUMENTS[begin : begin + 2]) for begin in range(0, 8, 2)]


def changed(micro, **columns):
    return msgspec.structs.replace(micro, **columns)


def equal(one, other):
    one, other = (value.to_local() if isinstance(value, DTensor) else value for value in (one, other))
    return torch.equal(one, other)


def silent(micro):
    """The same tokens as a dummy."""
    zeros = np.zeros(len(micro.token_ids), np.float32)
    return changed(micro, rl_weight=zeros, ce_weight=zeros, advantage=zeros, role=np.zeros(len(zeros), np.uint8))


def gradient_of(folder, micro_batches, totals=None, **options):
    with learner(folder, **options) as one:
        one.runner.run(rank_batch(micro_batches, totals or TOTALS))
        return one.gradient


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("model") / "m"


@pytest.fixture(scope="module")
def reference(folder):
    return gradient_of(folder, [joined(DOCUMENTS)])


@pytest.mark.parametrize("split", [in_four, lambda: DOCUMENTS], ids=["four micro-batches", "one by one"])
def test_gradient_does_not_depend_on_the_split(folder, reference, split):
    assert distance(gradient_of(folder, split()), reference) <= 1e-5


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("tie", [False, True], ids=["untied", "tied"])
def test_gradient_equals_that_of_the_whole_loss_on_a_plain_model(tmp_path, family, tie):
    """The step's machinery (sharding, chunks, packing) against autograd through an eager model and a plain loss."""
    options = {"family": family, "tie": tie}
    mine = gradient_of(tmp_path / "m", in_four(), **options)
    policy = tiny_policy(tmp_path / "m", **options)
    policy.model.set_attn_implementation("eager")
    total = torch.zeros(())
    for part in DOCUMENTS:
        ids = torch.from_numpy(part.token_ids).long()
        lp = (policy.model(ids[None]).logits[0, :-1] / 0.8).log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        lq, advantage, rl, ce = (
            torch.from_numpy(column)[1:] for column in (part.logprobs, part.advantage, part.rl_weight, part.ce_weight)
        )
        moved = lp.detach().exp() - lq.exp()
        dropped = torch.where(advantage > 0, moved > 0.2, moved < -0.2)
        terms = 1e-3 * (lp - lq) ** 2 - (~dropped) * advantage * (lp - lq).exp()
        total = total + (rl * terms).sum() / TOTALS["rl"] - (ce * lp).sum() / TOTALS["ce"]
    total.backward()
    plain = {name: parameter.grad for name, parameter in policy.named_parameters()}
    assert distance(mine, plain) <= 1e-5


def test_tokens_are_counted(folder):
    with learner(folder) as one:
        outcome = one.runner.run(rank_batch(in_four(), TOTALS))
    assert outcome.packed_tokens == sum(len(part.token_ids) for part in DOCUMENTS)
    assert outcome.trained_tokens == TOTALS["rl"] + TOTALS["ce"]


@pytest.mark.parametrize("kind", LOSSES)
def test_dummies_change_nothing(folder, kind):
    dummies, options = [silent(DOCUMENTS[0]), silent(DOCUMENTS[4])], {"loss": LossConfig(type=kind)}
    alone = gradient_of(folder, [joined(DOCUMENTS)], **options)
    assert distance(gradient_of(folder, [dummies[0], joined(DOCUMENTS), dummies[1]], **options), alone) <= 1e-6


def test_a_step_of_dummies_alone_keeps_the_weights(folder):
    with learner(folder) as one:
        before = one.weights()
        outcome = one.runner.run(rank_batch([silent(DOCUMENTS[0])], {"rl": 0.0, "ce": 0.0}))
        assert all(torch.equal(value, before[name]) for name, value in one.weights().items())
    assert outcome.metrics["loss/total"] is None
    assert outcome.metrics["optim/grad_norm"] == 0.0
    assert outcome.trained_tokens == 0
    assert outcome.gap.tokens == 0
    assert outcome.gap.max_abs is None


@pytest.mark.parametrize("kind", LOSSES)
def test_rl_only_batches_are_bit_identical_with_and_without_echo(folder, kind):
    parts = [joined([document(seed, 12, echo=False) for seed in (1, 2)])]
    count = denominators(parts)["rl"]
    without, skipped, empty = (
        gradient_of(folder, parts, totals, loss=LossConfig(type=kind))
        for totals in ({"rl": count}, {"rl": count, "ce": 0.0}, {"rl": count, "ce": 9.0})
    )
    assert all(torch.equal(without[name], skipped[name]) for name in without)
    assert all(torch.equal(without[name], empty[name]) for name in without)


def test_a_component_with_denominator_zero_is_skipped(folder):
    """Weights without a denominator do not train, and are not counted as trained."""
    with learner(folder) as one:
        outcome = one.runner.run(rank_batch([joined(DOCUMENTS)], {"rl": 0.0, "ce": TOTALS["ce"]}))
    assert outcome.metrics["loss/rl"] is None
    assert outcome.metrics["entropy/all"] is None
    assert outcome.trained_tokens == TOTALS["ce"]
    assert outcome.metrics["loss/total"] == outcome.metrics["loss/ce"]


def test_metrics_by_environment(folder):
    parts = [document(1, 15, environment="b"), document(2, 12, environment="a", echo=False)]
    with learner(folder) as one:
        scores = [one.policy(packed_like(part)) for part in parts]
        outcome = one.runner.run(rank_batch(parts, denominators(parts)))
    found = outcome.metrics
    nll, entropy, ratio, kept = {}, {}, [], []
    for part, score in zip(parts, scores, strict=True):
        output, action = part.role[1:] == TokenRole.ENV_OUTPUT, part.role[1:] == TokenRole.ACTION
        name = part.environments[0]
        nll[name] = -score.logprobs.detach().numpy()[output]
        entropy[name] = score.entropy.numpy()[action]
        ratio += (score.logprobs.detach().numpy() - part.logprobs[1:])[action].tolist()
        kept.append(name)
    for name in kept:
        assert found[f"env_nll/{name}"] == pytest.approx(nll[name].mean(), rel=1e-5)
        assert found[f"entropy/{name}"] == pytest.approx(entropy[name].mean(), rel=1e-5)
    assert found["env_nll/all"] == pytest.approx(np.concatenate(list(nll.values())).mean(), rel=1e-5)
    assert found["echo_nll/b"] == pytest.approx(nll["b"].mean(), rel=1e-5)
    assert found["echo_nll/a"] is None
    assert found["echo_tokens"] == len(nll["b"])
    assert found["ratio/mean"] == pytest.approx(np.exp(ratio).mean(), rel=1e-4)
    assert found["mismatch_kl/all"] == pytest.approx((np.exp(ratio) - ratio - 1).mean(), rel=1e-4)
    assert found["is_masked/all"] == pytest.approx(found["is_masked_low"] + found["is_masked_high"])
    assert found["loss/total"] == pytest.approx(found["loss/rl"] + found["loss/ce"])
    assert found["optim/lr"] == 1e-2


def test_temperatures_are_not_rounded_to_the_compute_dtype(folder):
    """0.7 is no bfloat16: the nearest is 0.69921875."""
    ids = [torch.from_numpy(DOCUMENTS[4].token_ids).long()]
    with learner(folder, compute_dtype=torch.bfloat16) as one, torch.no_grad():
        exact, rounded = (
            one.policy(packed(ids, torch.full((20,), value))).logprobs
            for value in (0.7, float(torch.tensor(0.7).bfloat16()))
        )
    assert not torch.equal(exact, rounded)


def packed_like(part):
    return packed([torch.from_numpy(part.token_ids).long()], torch.from_numpy(part.temperature))


def test_echo_tokens_stay_out_of_rl_metrics(folder):
    """An action token that trains by cross-entropy only (an echoed assistant turn) is no RL token."""
    part = document(3, 20)
    moved = changed(part, rl_weight=np.zeros(20, np.float32), ce_weight=(0.1 * (part.role != 0)).astype(np.float32))
    with learner(folder) as one:
        outcome = one.runner.run(rank_batch([moved], {"rl": 5.0, "ce": 18.0}))
    assert outcome.metrics["ratio/mean"] is None
    assert outcome.metrics["entropy/all"] is None
    assert outcome.metrics["echo_tokens"] == 18


def test_gap_of_matching_and_of_wrong_logprobs(folder):
    part = document(1, 20, version=2)
    action = part.role == TokenRole.ACTION
    with learner(folder) as one:
        true = np.zeros(20, np.float32)
        true[1:] = one.policy(packed_like(part)).logprobs.detach().numpy()
        exact = changed(part, logprobs=np.where(action, true, 0).astype(np.float32), rl_weight=np.zeros(20, np.float32))
        position = np.flatnonzero(action)[2]
        off = exact.logprobs.copy()
        off[position] += 0.5
        totals = {"rl": 0.0, "ce": 0.0}
        good = one.runner.run(rank_batch([exact], totals, step=3)).gap
        bad = one.runner.run(rank_batch([changed(exact, logprobs=off)], totals, step=3)).gap
        stale = one.runner.run(rank_batch([exact], totals, step=4)).gap
    assert good.tokens == action.sum()
    assert good.over_tolerance == 0
    assert good.max_abs < 1e-4
    assert bad.over_tolerance == 1
    assert bad.max_abs == pytest.approx(0.5, abs=1e-4)
    assert bad.mean_abs == pytest.approx(0.5 / action.sum(), rel=1e-3)
    assert stale.tokens == 0
    assert stale.mean_abs is None


def test_tokens_a_version_old_are_compared_with_the_version_that_sampled_them(folder):
    part = document(1, 20, version=0)
    action = part.role == TokenRole.ACTION
    nothing = {"rl": 0.0, "ce": 0.0}
    with learner(folder) as one:
        true = np.zeros(20, np.float32)
        true[1:] = one.policy(packed_like(part)).logprobs.detach().numpy()
        exact = changed(part, logprobs=np.where(action, true, 0).astype(np.float32))
        assert one.runner.run(rank_batch([exact], denominators([exact]), step=1)).gap.tokens == action.sum()
        moved = one.policy(packed_like(part)).logprobs.detach().numpy()
        gap = one.runner.run(rank_batch([exact], nothing, step=2)).gap
        later = one.runner.run(rank_batch([exact], nothing, step=3)).gap
    assert np.abs(moved - true[1:]).max() > 1e-3, "the update can be seen"
    assert (gap.tokens, gap.over_tolerance) == (action.sum(), 0)
    assert gap.max_abs < 1e-4
    assert later.tokens == 0, "only now and then"


def test_former_weights_leave_the_present_ones_as_they_were(folder):
    with learner(folder) as one:
        former = FormerWeights(one.policy, every=5)
        start = [parameter.detach().clone() for parameter in one.policy.parameters()]
        former.keep(6)
        with torch.no_grad():
            for parameter in one.policy.parameters():
                parameter.mul_(1.1)
        present = [parameter.detach().clone() for parameter in one.policy.parameters()]
        assert (former.holds(5), former.holds(6)) == (True, False)
        with former.in_place():
            found = [parameter.detach().clone() for parameter in one.policy.parameters()]
        after = [parameter.detach().clone() for parameter in one.policy.parameters()]
    assert all(map(equal, found, start))
    assert all(map(equal, after, present))
    assert not former.holds(5)
    former.keep(7)
    assert not former.holds(6)


@pytest.mark.parametrize(("column", "component"), [("advantage", "rl"), ("logprobs", "rl"), ("ce_weight", "ce")])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_input_stops_before_weights_change(folder, column, component, value):
    parts = in_four()
    wrong = getattr(parts[2], column).copy()
    wrong[parts[2].rl_weight > 0 if component == "rl" else parts[2].ce_weight > 0] = value
    parts[2] = changed(parts[2], **{column: wrong})
    with learner(folder, optimizer=OptimizerConfig(lr=1.0)) as one:
        before = one.weights()
        with pytest.raises(NonFinite, match=f"step 1: the {component} loss is not finite .* samples e5/0, e6/0$"):
            one.runner.run(rank_batch(parts, TOTALS))
        assert all(torch.equal(value, before[name]) for name, value in one.weights().items())
        assert not one.optimizer.state
        outcome = one.runner.run(rank_batch(in_four(), TOTALS))
    assert math.isfinite(outcome.metrics["loss/total"])


@pytest.mark.parametrize(
    ("accumulation", "named"),
    [
        ("sharded", "after micro-batch 1 of samples e3/0, e4/0$"),
        # Reduced at the end alone, it may be that of any sample until then.
        ("unsharded", "after micro-batch 1 of samples e1/0, e2/0, e3/0, e4/0$"),
    ],
)
def test_a_gradient_that_overflows_names_its_micro_batch(folder, accumulation, named):
    parts = in_four()
    parts[1] = changed(parts[1], advantage=parts[1].advantage * np.float32(1e30))
    with learner(folder, accumulation=accumulation) as one:
        before = one.weights()
        with pytest.raises(NonFinite, match=f"gradient is not finite {named}"):
            one.runner.run(rank_batch(parts, TOTALS))
        assert all(torch.equal(value, before[name]) for name, value in one.weights().items())


def test_clipping_bounds_the_update(folder, reference):
    norm = math.sqrt(sum(float(value.square().sum()) for value in reference.values()))
    config = OptimizerConfig(type="sgd", lr=1.0, weight_decay=0.0, max_grad_norm=norm / 4)
    with learner(folder, optimizer=config) as one:
        before = one.weights()
        outcome = one.runner.run(rank_batch([joined(DOCUMENTS)], TOTALS))
        after = one.weights()
    moved = {name: before[name] - after[name] for name in before}
    quarter = {name: value / 4 for name, value in reference.items()}
    assert outcome.metrics["optim/grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert distance(moved, quarter) <= 1e-4


def test_what_only_one_loss_measures_is_a_metric_of_the_step(folder):
    with learner(folder, loss=LossConfig(type="cispo", clip_low=1.0, clip_high=0.0)) as one:
        found = one.runner.run(rank_batch(in_four(), TOTALS)).metrics
    assert 0 < found["is_clipped_high"] < 1
    assert found["is_clipped_low"] == 0
    assert found["is_masked/all"] == 0
    with learner(folder) as one:
        assert "is_clipped_high" not in one.runner.run(rank_batch(in_four(), TOTALS)).metrics


def test_penalty_of_the_config_reaches_the_loss(folder, reference):
    strong = gradient_of(folder, [joined(DOCUMENTS)], loss=LossConfig(kl_tau=1.0))
    assert distance(strong, reference) > 0.01


def test_foreign_batches_and_unknown_components_are_refused(folder):
    with learner(folder) as one:
        with pytest.raises(ValueError, match="batch is for rank 1 of 2, this is rank 0 of 1"):
            one.runner.run(rank_batch(DOCUMENTS, TOTALS, rank=1, num_ranks=2))
        with pytest.raises(ValueError, match="not supported yet: loss components"):
            one.runner.run(rank_batch(DOCUMENTS, {**TOTALS, "kl": 3.0}))
        with pytest.raises(ValueError, match="no micro-batches"):
            one.runner.run(rank_batch([], TOTALS))


def test_probe_sees_the_weights_of_every_step_and_leaves_them_sharded(folder):
    ids = [5, 9, 200, 31]
    with learner(folder, optimizer=OptimizerConfig(type="sgd", lr=0.5, weight_decay=0.0)) as one:
        first = probe_logprobs(one.policy, one.ranks, ids)
        assert all(isinstance(parameter, DTensor) for parameter in one.policy.parameters())
        one.runner.run(rank_batch(DOCUMENTS, TOTALS))
        second = probe_logprobs(one.policy, one.ranks, ids)
        direct = one.policy(packed([torch.tensor(ids)])).logprobs.tolist()
        with pytest.raises(ValueError, match="at least 2 tokens"):
            probe_logprobs(one.policy, one.ranks, [1])
    assert len(first) == 3
    assert first != second
    assert second == pytest.approx(direct)
