"""From the config to the policy-gradient loss that it names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from echorl_core.config import LossConfig
from echorl_trainer.losses.clipped import cispo_loss, grpo_loss
from echorl_trainer.losses.component import LossOutput
from echorl_trainer.losses.reinforce import reinforce_loss
from echorl_trainer.losses.trust_region import dppo_loss, ipo_loss


@dataclass(frozen=True)
class PolicyTokens:
    """What a policy-gradient loss sees of a micro-batch's K scored tokens: float32 [K] each."""

    policy_logprobs: Tensor
    sampler_logprobs: Tensor
    advantages: Tensor
    weights: Tensor


class PolicyLoss(Protocol):
    """The ``rl`` component, with its settings."""

    def __call__(self, tokens: PolicyTokens, *, denominator: float) -> LossOutput:
        """The micro-batch's share of the step's loss."""
        ...


_BUILT_IN: Mapping[str, tuple[Callable[..., LossOutput], tuple[str, ...]]] = {
    "dppo": (dppo_loss, ("mask_low", "mask_high", "kl_tau")),
    "ipo": (ipo_loss, ("mask_low", "mask_high", "kl_tau")),
    "grpo": (grpo_loss, ("clip_low", "clip_high", "kl_tau")),
    "cispo": (cispo_loss, ("clip_low", "clip_high", "kl_tau")),
    "reinforce": (reinforce_loss, ("kl_tau",)),
}


def policy_loss(config: LossConfig) -> PolicyLoss:
    """The loss that the config names."""
    function, names = _BUILT_IN[config.type]
    settings: dict[str, float] = {name: getattr(config, name) for name in names}

    def loss(tokens: PolicyTokens, *, denominator: float) -> LossOutput:
        columns = (tokens.policy_logprobs, tokens.sampler_logprobs, tokens.advantages, tokens.weights)
        return function(*columns, **settings, denominator=denominator)

    return loss
