"""Policy gradients that drop tokens whose probability moved too far. The ratio itself is never clipped."""

import torch
from torch import Tensor

from echorl_trainer.losses.component import LossOutput, check_denominator, ratio_metrics


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
    check_denominator(denominator)
    moved = moved_by(policy_logprobs, sampler_logprobs)
    high = (advantages > 0) & (moved > mask_high)
    low = (advantages <= 0) & (moved < -mask_low)
    columns = (policy_logprobs, sampler_logprobs, advantages, weights)
    return masked(*columns, low=low, high=high, kl_tau=kl_tau, denominator=denominator)


def ipo_loss(
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
    """Compute dppo's loss with a mask blind to the advantage: tokens that moved too far either way are dropped.

        loss = 1/N * sum_t w_t * ( -keep_t * A_t * r_t  +  kl_tau * (log r_t)^2 )
        r_t  = exp(policy_t - sampler_t)          d_t = exp(policy_t) - exp(sampler_t)
        keep_t is False where d_t > mask_high or d_t < -mask_low

    Shapes, units, gradient and metrics as ``dppo_loss``. With equal bounds it is IPO's |d_t| > eps.
    Source: INTELLECT Policy Optimization (documentation of prime-rl); penalty of Kimi K2.5 (arXiv:2602.02276).

    Raises:
        ValueError: the denominator is not positive.
    """
    check_denominator(denominator)
    moved = moved_by(policy_logprobs, sampler_logprobs)
    columns = (policy_logprobs, sampler_logprobs, advantages, weights)
    return masked(*columns, low=moved < -mask_low, high=moved > mask_high, kl_tau=kl_tau, denominator=denominator)


def moved_by(policy_logprobs: Tensor, sampler_logprobs: Tensor) -> Tensor:
    """How far each token's probability has moved since it was drawn, without a gradient."""
    return policy_logprobs.detach().exp() - sampler_logprobs.exp()


def masked(
    policy_logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    low: Tensor,
    high: Tensor,
    kl_tau: float,
    denominator: float,
) -> LossOutput:
    """The loss without the gain of tokens that went too far down (``low``) or up (``high``)."""
    active = weights != 0
    dropped_low, dropped_high = active & low, active & high
    keep = active & ~dropped_high & ~dropped_low
    # Mask before exp: where(keep, exp(x), 0) is 0 forward but nan backward when x overflows.
    log_ratio = torch.where(active, policy_logprobs - sampler_logprobs, 0.0)
    ratio = torch.exp(torch.where(keep, log_ratio, 0.0))
    gain = torch.where(keep, advantages, 0.0) * ratio
    loss = (weights / denominator * (kl_tau * log_ratio.square() - gain)).sum()
    dropped = {"dropped_low": dropped_low.float(), "dropped_high": dropped_high.float()}
    return LossOutput(loss, ratio_metrics(log_ratio.detach(), active) | dropped)
