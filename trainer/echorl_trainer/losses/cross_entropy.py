"""Cross-entropy on tokens that the environment wrote."""

import torch
from torch import Tensor

from echorl_trainer.losses.component import LossOutput, check_denominator


def cross_entropy_loss(policy_logprobs: Tensor, weights: Tensor, *, denominator: float) -> LossOutput:
    """ECHO's cross-entropy on tokens that the environment wrote.

        loss = -1/N * sum_t w_t * policy_t

    Shapes: float32 [K]. ``weights`` hold ECHO's alpha (or alpha / |O| under the per-sequence normaliser), and
    ``denominator`` is N, of the whole step: tokens or sequences. The gradient of token t's logprob is -w_t / N exactly.
    Source: ECHO (arXiv:2605.24517) eq. of L_Env.

    Raises:
        ValueError: the denominator is not positive.
    """
    check_denominator(denominator)
    # Selecting before the product keeps an untrained token's -inf out: 0 * -inf is nan.
    logprobs = torch.where(weights != 0, policy_logprobs, 0.0)
    return LossOutput(-(weights / denominator * logprobs).sum())
