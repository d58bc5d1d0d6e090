"""On-policy distillation: the policy's own tokens, pulled towards what a teacher would have said in their place."""

import torch
from torch import Tensor

from echorl_trainer.losses.component import LossOutput, check_denominator
from echorl_trainer.losses.trust_region import masked, moved_by


def opd_loss(
    policy_logprobs: Tensor,
    sampler_logprobs: Tensor,
    teacher_logprobs: Tensor,
    weights: Tensor,
    *,
    mask_low: float,
    kl_tau: float,
    denominator: float,
) -> LossOutput:
    """Reverse KL to a teacher by its policy gradient: the teacher's lead on a token stands in for an advantage.

        loss = 1/N * sum_t w_t * ( -keep_t * A_t * r_t  +  kl_tau * (log r_t)^2 )
        A_t  = stopgrad(teacher_t - policy_t)
        r_t  = exp(policy_t - sampler_t)          d_t = exp(policy_t) - exp(sampler_t)
        keep_t is False where d_t < -mask_low

    On fresh samples the gradient is that of KL(policy || teacher), token by token. The mask has one side: a token whose
    probability has fallen too far since it was drawn gives no gain, whatever the teacher says of it.

    Shapes: float32 [K] each. Units: natural-log probabilities, under the weights being trained (policy), the weights
    that drew the token (sampler) and the teacher. Gradient flows through policy only, and not through ``keep`` and
    ``A``. Dropped tokens keep their penalty. ``denominator`` is N, over all micro-batches and ranks.
    Metrics: ``teacher_kl`` = policy - teacher (an unbiased estimate of KL(policy || teacher) on fresh samples),
    ``ratio``, ``mismatch_kl`` = r - log r - 1, ``dropped_low``, ``dropped_high`` (never).
    Source: reverse KL on the student's samples as in MiniLLM (arXiv:2306.08543) and GKD (arXiv:2306.13649), by its
    policy gradient without look-ahead; one-sided mask of prime-rl; penalty of Kimi K2.5 (arXiv:2602.02276).

    Raises:
        ValueError: the denominator is not positive.
    """
    check_denominator(denominator)
    lead = torch.where(weights != 0, teacher_logprobs - policy_logprobs.detach(), 0.0)
    low = moved_by(policy_logprobs, sampler_logprobs) < -mask_low
    columns = (policy_logprobs, sampler_logprobs, lead, weights)
    found = masked(*columns, low=low, high=torch.zeros_like(low), kl_tau=kl_tau, denominator=denominator)
    return LossOutput(found.loss, {**found.metrics, "teacher_kl": -lead})
