"""Formulas of the papers and of prime-rl over whole tensors, in float64, with autograd: nothing of ours is in them.

Symbols: lp, lq logprobs of trainer and engine; A advantages; masks are bool. prime-rl's tokens that no engine sampled
have lq = 0.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Formula = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(lp, lq, A) to a loss for each token, without penalty."""


def dppo(low: float, high: float, adv_tau: float = 1.0) -> Formula:
    """prime-rl's default: a binary mask on the difference of probabilities."""

    def formula(lp: Tensor, lq: Tensor, advantage: Tensor) -> Tensor:
        moved = (lp.exp() - lq.exp()).detach()
        drop = torch.where(advantage > 0, moved > high, moved < -low)
        return torch.where(drop, torch.zeros_like(lp), -adv_tau * advantage * (lp - lq).exp())

    return formula


def ipo(bound: float) -> Formula:
    """prime-rl's IPO: the mask is symmetric and does not look at the advantage."""

    def formula(lp: Tensor, lq: Tensor, advantage: Tensor) -> Tensor:
        drop = (lp.exp() - lq.exp()).detach().abs() > bound
        return torch.where(drop, torch.zeros_like(lp), -advantage * (lp - lq).exp())

    return formula


def opd(low: float) -> Formula:
    """prime-rl's newest distillation: the teacher's lead for an advantage, a mask that has one side.

    The formula's A holds the teacher's logprobs.
    """

    def formula(lp: Tensor, lq: Tensor, teacher: Tensor) -> Tensor:
        drop = (lp.exp() - lq.exp()).detach() < -low
        return torch.where(drop, torch.zeros_like(lp), -(teacher - lp).detach() * (lp - lq).exp())

    return formula


def sft(lp: Tensor, mask: Tensor) -> Tensor:
    """Mean cross-entropy of the chosen tokens."""
    return -lp[mask].sum() / int(mask.sum())


def grpo(low: float, high: float) -> Formula:
    """PPO's clipped surrogate with DAPO's two bounds."""

    def formula(lp: Tensor, lq: Tensor, advantage: Tensor) -> Tensor:
        ratio = (lp - lq).exp()
        return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)

    return formula


def cispo(low: float, high: float) -> Formula:
    """MiniMax-M1's clipped importance weight."""

    def formula(lp: Tensor, lq: Tensor, advantage: Tensor) -> Tensor:
        return -(lp - lq).exp().clamp(1 - low, 1 + high).detach() * advantage * lp

    return formula


def reinforce(lp: Tensor, lq: Tensor, advantage: Tensor) -> Tensor:
    """The score function's estimate."""
    return -advantage * lp


def penalty(lp: Tensor, lq: Tensor) -> Tensor:
    """Kimi K2.5's squared log ratio."""
    return (lp - lq) ** 2


def with_echo(rl: Tensor, lp: Tensor, alpha: Tensor, *, loss_mask: Tensor, echo_mask: Tensor) -> Tensor:
    """prime-rl's sum of both terms, each over its own number of tokens.

    ``rl`` is the policy-gradient term of each token with its penalty; ECHO tokens leave it.
    """
    of_rl, of_echo = loss_mask & ~echo_mask, loss_mask & echo_mask
    return rl[of_rl].sum() / max(int(of_rl.sum()), 1) - (alpha * lp)[of_echo].sum() / max(int(of_echo.sum()), 1)


def echo_per_sequence(lp: Tensor, alpha: float, observed: list[Tensor], trained: list[Tensor]) -> Tensor:
    """The paper's term: the mean over sequences with observations of alpha times their mean cross-entropy.

    ``observed`` and ``trained`` are masks of each sequence: every observation token, and those that a filter left.
    """
    means = [
        -alpha * lp[chosen].sum() / int(all_of_it.sum())
        for all_of_it, chosen in zip(observed, trained, strict=True)
        if all_of_it.any()
    ]
    return torch.stack(means).mean()
