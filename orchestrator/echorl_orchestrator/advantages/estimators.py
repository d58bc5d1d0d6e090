"""Rewards of one group to advantages: pure functions. ``docs/algorithms.md`` has the formulas and their sources.

Only episodes that survived are here: one that an engine, a sandbox or a deadline failed has no part in any baseline.
"""

import math
from collections.abc import Sequence

from echorl_core.config import AdvantageConfig


class RewardError(ValueError):
    """A reward that the advantage is not defined for."""


def advantages(rewards: Sequence[float], config: AdvantageConfig, costs: Sequence[float] = ()) -> list[float]:
    """One advantage per reward of a group's surviving episodes. ``custom`` is not computed here.

    ``groupMean``: reward minus the group's mean, without division by the standard deviation (Dr. GRPO, arXiv
    2503.20783). ``maxRl``: that difference over the mean (arXiv:2602.02710). ``none``: the reward itself. A difference
    that is rounding noise is exactly 0, since filters ask for zero.

    Args:
        rewards: finite, one for each surviving episode.
        config: which, and whether rewards are shaped by ``costs`` first.
        costs: of these episodes; only looked at with length shaping.

    Raises:
        RewardError: a reward below 0 with ``maxRl``.
    """
    if config.type == "none" or not rewards:
        return list(rewards)
    if config.type == "maxRl":
        return _max_rl(rewards)
    return _centred(rewards if config.length_shaping is None else shaped(rewards, costs))


def shaped(rewards: Sequence[float], costs: Sequence[float]) -> list[float]:
    """Rewards with a bonus for the cheaper ones of a group's best episodes.

        R_i * (1 + clamp(1 - c_i / mean(c of the best), 0, 1))   where R_i is the group's highest reward; else R_i

    So a best episode gains at most its own reward, and none ever falls behind a worse one. Nothing changes where the
    highest reward or the mean cost is not above 0.
    """
    best = max(rewards)
    winners = [cost for reward, cost in zip(rewards, costs, strict=True) if reward == best]
    mean = math.fsum(winners) / len(winners)
    if best <= 0 or mean <= 0:
        return list(rewards)
    return [
        reward * (2.0 - min(cost / mean, 1.0)) if reward == best else reward
        for reward, cost in zip(rewards, costs, strict=True)
    ]


def _max_rl(rewards: Sequence[float]) -> list[float]:
    if (lowest := min(rewards)) < 0:
        raise RewardError(f"maxRl: found a reward of {lowest:g}, accepted are rewards of at least 0")
    mean = math.fsum(rewards) / len(rewards)
    return [0.0 if mean == 0 else difference / mean for difference in _centred(rewards)]


def _centred(rewards: Sequence[float]) -> list[float]:
    mean = math.fsum(rewards) / len(rewards)
    noise = 1e-12 * max(abs(reward) for reward in rewards)
    return [0.0 if abs(reward - mean) <= noise else reward - mean for reward in rewards]
