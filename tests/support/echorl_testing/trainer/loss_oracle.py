"""Policy-gradient losses one token at a time, in Python's float64: what the vectorised ones are compared with."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

DEFAULTS: dict[str, dict[str, float]] = {
    "dppo": {"mask_low": 0.2, "mask_high": 0.2, "kl_tau": 1e-3},
    "ipo": {"mask_low": 0.3, "mask_high": 0.3, "kl_tau": 1e-3},
    "grpo": {"clip_low": 0.2, "clip_high": 0.28, "kl_tau": 1e-3},
    "cispo": {"clip_low": 1.0, "clip_high": 0.28, "kl_tau": 1e-3},
    "reinforce": {"kl_tau": 1e-3},
}
"""Settings by type, as the manifest's."""

Token = tuple[float, float, float, float]
"""Policy logprob, sampler logprob, advantage, weight."""


@dataclass(frozen=True)
class Expected:
    """A loss over tokens."""

    loss: float
    gradient: list[float]
    """By the policy's logprobs."""
    low: int
    """Tokens that were dropped, or whose ratio was clipped, downwards."""
    high: int
    size: float
    """Sum of the absolute terms: what a relative error of the loss is relative to."""


def expected(kind: str, tokens: Iterable[Token], *, denominator: float, **settings: float) -> Expected:
    """The loss of all tokens; those of weight 0 are never looked at."""
    loss, size, low, high, gradient = 0.0, 0.0, 0, 0, []
    for policy, sampler, advantage, weight in tokens:
        if weight == 0:
            gradient.append(0.0)
            continue
        gain, slope, is_low, is_high = _GAINS[kind](policy, sampler, advantage, settings)
        penalty = settings["kl_tau"] * (policy - sampler) ** 2
        loss += weight * (penalty - gain) / denominator
        size += weight * (penalty + abs(gain)) / denominator
        gradient.append(weight * (2 * settings["kl_tau"] * (policy - sampler) - slope) / denominator)
        low, high = low + is_low, high + is_high
    return Expected(loss, gradient, low, high, size)


Gain = tuple[float, float, bool, bool]
"""Gain, its derivative by the policy's logprob, and whether a bound was passed below or above."""


def _dppo(policy: float, sampler: float, advantage: float, settings: dict[str, float]) -> Gain:
    moved = math.exp(policy) - math.exp(sampler)
    is_high = advantage > 0 and moved > settings["mask_high"]
    is_low = advantage <= 0 and moved < -settings["mask_low"]
    gain = 0.0 if is_high or is_low else advantage * math.exp(policy - sampler)
    return gain, gain, is_low, is_high


def _ipo(policy: float, sampler: float, advantage: float, settings: dict[str, float]) -> Gain:
    moved = math.exp(policy) - math.exp(sampler)
    is_low, is_high = moved < -settings["mask_low"], moved > settings["mask_high"]
    gain = 0.0 if is_high or is_low else advantage * math.exp(policy - sampler)
    return gain, gain, is_low, is_high


def _grpo(policy: float, sampler: float, advantage: float, settings: dict[str, float]) -> Gain:
    ratio = math.exp(policy - sampler)
    bounded = min(max(ratio, 1 - settings["clip_low"]), 1 + settings["clip_high"])
    gain = min(ratio * advantage, bounded * advantage)
    clipped = bounded * advantage < ratio * advantage
    return gain, 0.0 if clipped else ratio * advantage, clipped and advantage < 0, clipped and advantage > 0


def _cispo(policy: float, sampler: float, advantage: float, settings: dict[str, float]) -> Gain:
    ratio = math.exp(policy - sampler)
    low, high = 1 - settings["clip_low"], 1 + settings["clip_high"]
    slope = min(max(ratio, low), high) * advantage
    return slope * policy, slope, ratio < low, ratio > high


def _reinforce(policy: float, sampler: float, advantage: float, settings: dict[str, float]) -> Gain:
    return advantage * policy, advantage, False, False


_GAINS = {"dppo": _dppo, "ipo": _ipo, "grpo": _grpo, "cispo": _cispo, "reinforce": _reinforce}
