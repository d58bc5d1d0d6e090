"""What every component loss is made of."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class LossOutput:
    """A component's share of the step's loss in one micro-batch of K scored tokens."""

    loss: Tensor
    """Scalar float32."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Per token, float32 [K], detached, 0 outside the component."""


def check_denominator(denominator: float) -> None:
    """Refuse what a component cannot be divided by.

    Raises:
        ValueError: it is not positive.
    """
    if not denominator > 0:
        raise ValueError(f"denominator is {denominator}; a component without one is skipped, not computed")


def graph_anchor(policy_logprobs: Tensor) -> Tensor:
    """A zero that depends on every logprob, so that a rank with nothing to train runs the same backward as its peers.

    Gradients through it are exactly 0, also where a logprob is infinite.
    """
    return torch.where(torch.zeros_like(policy_logprobs, dtype=torch.bool), policy_logprobs, 0.0).sum()


@torch.no_grad()
def ratio_metrics(log_ratio: Tensor, active: Tensor) -> dict[str, Tensor]:
    """``ratio`` r and ``mismatch_kl`` = r - log r - 1 (Schulman's k3 estimate) per token, 0 where not active.

    Args:
        log_ratio: float32 [K], policy minus sampler logprob.
        active: bool [K], tokens of the component.
    """
    ratio = torch.exp(log_ratio)
    return {
        "ratio": torch.where(active, ratio, 0.0),
        "mismatch_kl": torch.where(active, ratio - log_ratio - 1.0, 0.0),
    }
