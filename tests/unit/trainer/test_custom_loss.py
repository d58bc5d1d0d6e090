"""A user's own loss: what it sees, how it is scaled, and errors that name it."""

import math
import sys

import msgspec
import pytest
import torch

from echorl_core.config import HookConfig, LossConfig
from echorl_core.names import ExitCode
from echorl_testing.orchestrator.packs import denominators, distance, document, joined, learner, rank_batch
from echorl_trainer.losses import HookError, PolicyTokens, RlSequences, policy_loss
from echorl_trainer.rank import exit_code
from echorl_trainer.step import NonFinite

OWN = "echorl_testing.trainer.own_losses"


def own(name, **kwargs):
    return policy_loss(LossConfig(type="custom", hook=HookConfig(import_path=f"{OWN}:{name}", kwargs=kwargs)))


def two_sequences():
    """Seven scored tokens of which two sequences train two and three; the last has no weight."""
    policy = torch.tensor([-1.0, -9.0, -2.0, -3.0, -1.0, -0.5, math.nan], requires_grad=True)
    sampler = torch.tensor([-1.5, 0.0, -2.0, -2.5, -1.0, -1.0, math.inf])
    advantages = torch.tensor([1.0, 0.0, 1.0, -2.0, -2.0, -2.0, math.nan])
    weights = torch.tensor([0.5, 0.0, 0.5, 1.0, 1.0, 1.0, 0.0])
    where = RlSequences(torch.tensor([0, 2, 3, 4, 5]), [2, 3], ["a", "b"], ["e1/0", "e2/0"])
    return policy, PolicyTokens(policy, sampler, advantages, weights, where)


def test_weights_and_denominator_are_applied_to_what_it_returns():
    policy, tokens = two_sequences()
    output = own("policy_gradient", scale=2.0)(tokens, denominator=4.0)
    output.loss.backward()
    slopes = [-math.exp(0.5), 0, -1.0, 4 * math.exp(-0.5), 4.0, 4 * math.exp(0.5), 0]
    assert policy.grad.tolist() == pytest.approx([slope / 4 for slope in slopes], rel=1e-6)
    assert output.loss.item() == pytest.approx(sum(slopes) / 4, rel=1e-6)


def test_metrics_stand_at_their_tokens():
    _, tokens = two_sequences()
    metrics = own("policy_gradient")(tokens, denominator=4.0).metrics
    assert metrics["custom/length"].tolist() == [2, 0, 2, 3, 3, 3, 0]
    assert float(metrics["ratio"][0]) == pytest.approx(math.exp(0.5))
    assert torch.isfinite(metrics["ratio"]).all()


def test_a_sequence_sees_nothing_of_another():
    _, tokens = two_sequences()
    both = own("sequence_ratio")(tokens, denominator=1.0).loss
    alone = 0.0
    for rows, length in ((slice(0, 3), 2), (slice(3, 7), 3)):
        columns = [column[rows] for column in (tokens.policy_logprobs, tokens.sampler_logprobs, tokens.advantages)]
        weights = tokens.weights[rows]
        where = RlSequences(weights.nonzero()[:, 0], [length], ["a"], ["e"])
        alone += own("sequence_ratio")(PolicyTokens(*columns, weights, where), denominator=1.0).loss
    assert torch.allclose(both, alone, rtol=1e-6)


def test_a_micro_batch_without_trainable_tokens_is_a_zero_with_a_gradient():
    policy = torch.tensor([-1.0, math.nan], requires_grad=True)
    zeros = torch.zeros(2)
    nothing = RlSequences(torch.zeros(0, dtype=torch.int64), [], [], [])
    output = own("raises")(PolicyTokens(policy, zeros, zeros, zeros, nothing), denominator=3.0)
    output.loss.backward()
    assert output.loss.item() == 0.0
    assert policy.grad.tolist() == [0.0, 0.0]


WRONG = [
    ("raises", r"raised KeyError: 'lost' \(.*own_losses.py:\d+\); sample e1/0"),
    ("scalar", r"loss is a float32 tensor of shape \[\] on cpu, accepted is a float32 tensor of shape \[2\] on cpu"),
    ("double", r"loss is a float64 tensor of shape \[2\]"),
    ("numbers", "loss is a list, accepted is a float32 tensor"),
    ("detached", "loss does not require grad, accepted is one computed from policy_logprobs"),
    ("tensor", "returned Tensor, accepted is echorl_trainer.losses.LossOutputs"),
    ("bad_metric_name", "metric 'My metric': accepted are names of lower-case letters"),
    ("bad_metric", r"metric 'mean' is a float32 tensor of shape \[\]"),
]


@pytest.mark.parametrize(("name", "message"), WRONG, ids=[name for name, _ in WRONG])
def test_errors_name_the_function_the_value_and_the_sample(name, message):
    with pytest.raises(HookError, match=f"^spec.algorithm.loss.import '{OWN}:{name}': .*{message}") as caught:
        own(name)(two_sequences()[1], denominator=1.0)
    assert "sample e1/0" in str(caught.value)
    assert exit_code(caught.value) is ExitCode.BAD_INPUT


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:loss", "'no_such_module:loss' does not import: ModuleNotFoundError"),
        (f"{OWN}:missing", f"module '{OWN}' has no 'missing'"),
        (f"{OWN}:NOT_CALLABLE", f"'{OWN}:NOT_CALLABLE' is a int, accepted is a function"),
    ],
)
def test_a_function_that_cannot_be_loaded(path, message):
    with pytest.raises(HookError, match=f"^spec.algorithm.loss.import: {message}"):
        policy_loss(LossConfig(type="custom", hook=HookConfig(import_path=path)))


def test_functions_are_found_in_the_users_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_losses.py").write_text("def loss(inputs):\n    raise RuntimeError('mine')\n")
    hook = HookConfig(import_path="my_losses:loss")
    found = policy_loss(LossConfig(type="custom", hook=hook), [str(tmp_path)])
    with pytest.raises(HookError, match="raised RuntimeError: mine"):
        found(two_sequences()[1], denominator=1.0)


PARTS = [document(seed, length, environment=name) for seed, length, name in ((1, 9, "a"), (2, 14, "b"), (3, 11, "a"))]
TOTALS = denominators(PARTS)
SILENT = msgspec.structs.replace(PARTS[0], rl_weight=PARTS[0].rl_weight * 0, ce_weight=PARTS[0].ce_weight * 0)
"""As what fills up a rank that has nothing to train."""


def custom(name, **kwargs):
    return LossConfig(type="custom", hook=HookConfig(import_path=f"{OWN}:{name}", kwargs=kwargs))


@pytest.mark.parametrize("name", ["policy_gradient", "sequence_ratio"])
def test_a_step_with_it_is_the_same_however_it_is_packed(tmp_path, name):
    gradients = []
    for micros in ([joined(PARTS)], PARTS, [SILENT, joined(PARTS[::-1])]):
        with learner(tmp_path / "m", loss=custom(name)) as one:
            outcome = one.runner.run(rank_batch(micros, TOTALS))
            gradients.append(one.gradient)
    assert distance(gradients[1], gradients[0]) <= 1e-5
    assert distance(gradients[2], gradients[0]) <= 1e-5
    if name == "sequence_ratio":
        return
    lengths = [float((part.rl_weight != 0).sum()) for part in PARTS]
    mean = sum(length**2 for length in lengths) / sum(lengths)
    assert outcome.metrics["custom/length"] == pytest.approx(mean)
    assert outcome.metrics["is_masked/all"] == 0


def test_what_is_not_finite_stops_the_step_and_names_it(tmp_path):
    with learner(tmp_path / "m", loss=custom("not_finite")) as one:
        before = one.weights()
        message = f"step 1: the rl loss is not finite .*; the rl loss is spec.algorithm.loss.import '{OWN}:not_finite'"
        with pytest.raises(NonFinite, match=message):
            one.runner.run(rank_batch(PARTS, TOTALS))
        assert all(torch.equal(value, before[name]) for name, value in one.weights().items())
