"""Component losses: pure functions of per-token tensors. ``docs/algorithms.md`` has the formulas and their sources.

Each is a sum over tokens divided by a global denominator that the caller passes, so that micro-batches and ranks
simply add. A weight of 0 takes a token out of the component altogether: whatever its logprobs hold, infinities
included, reaches neither the value nor the gradient.
"""

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


def dppo_loss(
    policy_logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    mask_low: float,
    mask_high: float,
    kl_tau: float,
    denominator: float,
) -> LossOutput:
    """Policy gradient that drops tokens whose probability moved too far, with a squared log-ratio penalty.

        loss = 1/N * sum_t w_t * ( -keep_t * A_t * r_t  +  kl_tau * (log r_t)^2 )
        r_t  = exp(policy_t - sampler_t)          d_t = exp(policy_t) - exp(sampler_t)
        keep_t is False where A_t > 0 and d_t > mask_high, or A_t <= 0 and d_t < -mask_low

    Shapes: float32 [K] each. Units: natural-log probabilities, under the weights being trained (policy) and the
    weights that drew the token (sampler). Gradient flows through policy only, and not through ``keep``. The ratio is
    never clipped; dropped tokens keep their penalty. ``denominator`` is N, over all micro-batches and ranks.
    Metrics: ``ratio``, ``mismatch_kl`` = r - log r - 1 (Schulman's k3 estimate), ``dropped_low``, ``dropped_high``.
    Source: DPPO's binary total-variation mask (arXiv:2602.04879); penalty of Kimi K2.5 (arXiv:2602.02276).

    Raises:
        ValueError: the denominator is not positive.
    """
    _check_denominator(denominator)
    active = weights != 0
    moved = policy_logprobs.detach().exp() - sampler_logprobs.exp()
    dropped_high = active & (advantages > 0) & (moved > mask_high)
    dropped_low = active & (advantages <= 0) & (moved < -mask_low)
    keep = active & ~dropped_high & ~dropped_low
    # Mask before exp: where(keep, exp(x), 0) is 0 forward but nan backward when x overflows.
    log_ratio = torch.where(active, policy_logprobs - sampler_logprobs, 0.0)
    ratio = torch.exp(torch.where(keep, log_ratio, 0.0))
    gain = torch.where(keep, advantages, 0.0) * ratio
    loss = (weights / denominator * (kl_tau * log_ratio.square() - gain)).sum()
    with torch.no_grad():
        full_ratio = torch.exp(log_ratio)
        metrics = {
            "ratio": torch.where(active, full_ratio, 0.0),
            "mismatch_kl": torch.where(active, full_ratio - log_ratio - 1.0, 0.0),
            "dropped_low": dropped_low.float(),
            "dropped_high": dropped_high.float(),
        }
    return LossOutput(loss, metrics)


def cross_entropy_loss(policy_logprobs: Tensor, weights: Tensor, *, denominator: float) -> LossOutput:
    """ECHO's cross-entropy on tokens that the environment wrote.

        loss = -1/N * sum_t w_t * policy_t

    Shapes: float32 [K]. ``weights`` hold ECHO's alpha (or alpha / |O| under the per-sequence normaliser), and
    ``denominator`` is N, of the whole step: tokens or sequences. The gradient of token t's logprob is -w_t / N exactly.
    Source: ECHO (arXiv:2605.24517) eq. of L_Env.

    Raises:
        ValueError: the denominator is not positive.
    """
    _check_denominator(denominator)
    # Selecting before the product keeps an untrained token's -inf out: 0 * -inf is nan.
    logprobs = torch.where(weights != 0, policy_logprobs, 0.0)
    return LossOutput(-(weights / denominator * logprobs).sum())


def graph_anchor(policy_logprobs: Tensor) -> Tensor:
    """A zero that depends on every logprob, so that a rank with nothing to train runs the same backward as its peers.

    Gradients through it are exactly 0, also where a logprob is infinite.
    """
    return torch.where(torch.zeros_like(policy_logprobs, dtype=torch.bool), policy_logprobs, 0.0).sum()


def _check_denominator(denominator: float) -> None:
    if not denominator > 0:
        raise ValueError(f"denominator is {denominator}; a component without one is skipped, not computed")
