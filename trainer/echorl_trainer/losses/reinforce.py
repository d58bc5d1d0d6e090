"""The plain policy gradient."""

import torch
from torch import Tensor

from echorl_trainer.losses.component import LossOutput, check_denominator, ratio_metrics


def reinforce_loss(
    policy_logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    kl_tau: float,
    denominator: float,
) -> LossOutput:
    """REINFORCE with a penalty on the distance from the policy that drew the tokens.

        loss = 1/N * sum_t w_t * ( -A_t * policy_t  +  kl_tau * (log r_t)^2 )          r_t = exp(policy_t - sampler_t)

    Shapes: float32 [K] each. Units: natural-log probabilities, under the weights being trained (policy) and the
    weights that drew the token (sampler). Nothing corrects for tokens of an older policy: exact on fresh samples
    alone. Half of the squared log ratio is Schulman's k2 estimate of the KL divergence; on fresh samples its gradient
    is that of KL(policy || sampler). ``denominator`` is N, over all micro-batches and ranks.
    Metrics: ``ratio``, ``mismatch_kl`` = r - log r - 1 (Schulman's k3 estimate).
    Source: REINFORCE (Williams 1992, doi:10.1007/BF00992696), per token; penalty of Kimi K2.5 (arXiv:2602.02276).

    Raises:
        ValueError: the denominator is not positive.
    """
    check_denominator(denominator)
    active = weights != 0
    log_ratio = torch.where(active, policy_logprobs - sampler_logprobs, 0.0)
    gain = torch.where(active, advantages, 0.0) * torch.where(active, policy_logprobs, 0.0)
    loss = (weights / denominator * (kl_tau * log_ratio.square() - gain)).sum()
    return LossOutput(loss, ratio_metrics(log_ratio.detach(), active))
