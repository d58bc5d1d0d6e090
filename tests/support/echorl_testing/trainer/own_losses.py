"""Custom losses, good and bad, by import path."""

from typing import Any

import torch

from echorl_trainer.losses import LossInputs, LossOutputs


def policy_gradient(inputs: LossInputs, *, scale: float = 1.0) -> LossOutputs:
    """``-A * r`` for each token."""
    ratio = (inputs.policy_logprobs - inputs.sampler_logprobs).exp()
    loss = -scale * inputs.advantages * ratio
    return LossOutputs(loss, {"length": torch.full_like(loss.detach(), float(len(loss)))})


def sequence_ratio(inputs: LossInputs) -> LossOutputs:
    """A ratio of the whole sequence, the same for all its tokens."""
    ratio = (inputs.policy_logprobs - inputs.sampler_logprobs).mean().exp()
    return LossOutputs(-inputs.advantages * ratio)


def raises(inputs: LossInputs) -> LossOutputs:
    """Fails."""
    raise KeyError("lost")


def scalar(inputs: LossInputs) -> LossOutputs:
    """Returns a sum."""
    return LossOutputs(inputs.policy_logprobs.sum())


def double(inputs: LossInputs) -> LossOutputs:
    """Returns float64."""
    return LossOutputs(inputs.policy_logprobs.double())


def detached(inputs: LossInputs) -> LossOutputs:
    """Returns a constant."""
    return LossOutputs(inputs.policy_logprobs.detach() * inputs.advantages)


def not_finite(inputs: LossInputs) -> LossOutputs:
    """Returns NaN."""
    return LossOutputs(inputs.policy_logprobs * float("nan"))


def tensor(inputs: LossInputs) -> Any:
    """Returns no LossOutputs."""
    return inputs.policy_logprobs


def numbers(inputs: LossInputs) -> LossOutputs:
    """Returns a list."""
    return LossOutputs(inputs.policy_logprobs.tolist())


def bad_metric_name(inputs: LossInputs) -> LossOutputs:
    """Names a metric as nobody can query it."""
    return LossOutputs(inputs.policy_logprobs, {"My metric": inputs.advantages})


def bad_metric(inputs: LossInputs) -> LossOutputs:
    """Returns a number as a metric."""
    return LossOutputs(inputs.policy_logprobs, {"mean": inputs.advantages.mean()})


NOT_CALLABLE = 3
