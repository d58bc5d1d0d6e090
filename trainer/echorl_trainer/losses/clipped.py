"""Policy gradients that bound the importance ratio: in the gain (GRPO) or in the gradient's coefficient (CISPO)."""

import torch
from torch import Tensor

from echorl_trainer.losses.component import LossOutput, check_denominator, ratio_metrics


def grpo_loss(
    policy_logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    kl_tau: float,
    denominator: float,
) -> LossOutput:
    """The clipped surrogate: a token gains nothing more once its ratio has left the range its advantage pushes it to.

        loss = 1/N * sum_t w_t * ( -min(r_t * A_t, clip(r_t, 1 - clip_low, 1 + clip_high) * A_t)
                                   + kl_tau * (log r_t)^2 )
        r_t  = exp(policy_t - sampler_t)

    Shapes: float32 [K] each. Units: natural-log probabilities, under the weights being trained (policy) and the
    weights that drew the token (sampler). Gradient flows through policy only; a clipped token has none but its
    penalty's. ``denominator`` is N, over all micro-batches and ranks.
    Metrics: ``ratio``, ``mismatch_kl`` = r - log r - 1 (Schulman's k3 estimate), ``dropped_low``, ``dropped_high``:
    clipped tokens with a negative and a positive advantage.
    Source: PPO (arXiv:1707.06347) eq. 7 as in GRPO (arXiv:2402.03300) eq. 3; two bounds as in DAPO (arXiv:2503.14476);
    penalty of Kimi K2.5 (arXiv:2602.02276) in place of GRPO's.

    Raises:
        ValueError: the denominator is not positive.
    """
    check_denominator(denominator)
    active = weights != 0
    log_ratio = torch.where(active, policy_logprobs - sampler_logprobs, 0.0)
    reached = log_ratio.detach().exp()
    high = active & (advantages > 0) & (reached > 1.0 + clip_high)
    low = active & (advantages < 0) & (reached < 1.0 - clip_low)
    keep = active & ~high & ~low
    # Mask before exp: where(keep, exp(x), 0) is 0 forward but nan backward when x overflows.
    ratio = torch.exp(torch.where(keep, log_ratio, 0.0))
    bound = torch.where(high, 1.0 + clip_high, torch.where(low, 1.0 - clip_low, ratio))
    gain = torch.where(active, advantages, 0.0) * bound
    loss = (weights / denominator * (kl_tau * log_ratio.square() - gain)).sum()
    dropped = {"dropped_low": low.float(), "dropped_high": high.float()}
    return LossOutput(loss, ratio_metrics(log_ratio.detach(), active) | dropped)


def cispo_loss(
    policy_logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    kl_tau: float,
    denominator: float,
) -> LossOutput:
    """REINFORCE with a clipped importance weight as a constant: every token keeps a gradient.

        loss = 1/N * sum_t w_t * ( -stopgrad(clip(r_t, 1 - clip_low, 1 + clip_high)) * A_t * policy_t
                                   + kl_tau * (log r_t)^2 )
        r_t  = exp(policy_t - sampler_t)

    Shapes, units and denominator as ``grpo_loss``. ``clip_low`` = 1 sets no lower bound, as in the paper.
    Metrics: ``ratio``, ``mismatch_kl``; ``is_clipped_low``, ``is_clipped_high``: tokens whose weight is a bound.
    Source: CISPO, MiniMax-M1 (arXiv:2506.13585) eq. 4 and 5; penalty of Kimi K2.5 (arXiv:2602.02276).

    Raises:
        ValueError: the denominator is not positive.
    """
    check_denominator(denominator)
    active = weights != 0
    log_ratio = torch.where(active, policy_logprobs - sampler_logprobs, 0.0)
    reached = log_ratio.detach().exp()
    coefficient = torch.where(active, advantages, 0.0) * reached.clamp(1.0 - clip_low, 1.0 + clip_high)
    gain = coefficient * torch.where(active, policy_logprobs, 0.0)
    loss = (weights / denominator * (kl_tau * log_ratio.square() - gain)).sum()
    clipped = {
        "is_clipped_low": (active & (reached < 1.0 - clip_low)).float(),
        "is_clipped_high": (active & (reached > 1.0 + clip_high)).float(),
    }
    return LossOutput(loss, ratio_metrics(log_ratio.detach(), active) | clipped)
