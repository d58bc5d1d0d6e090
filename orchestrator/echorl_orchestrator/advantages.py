"""Rewards of one group to advantages: pure functions."""

import math
from collections.abc import Sequence

from echorl_core.config import AdvantageConfig


def advantages(rewards: Sequence[float], config: AdvantageConfig) -> list[float]:
    """One advantage per reward of a group's surviving episodes.

    ``groupMean``: reward minus the group's mean, without division by the standard deviation (Dr. GRPO, arXiv
    2503.20783). ``none``: the reward itself. A difference that is rounding noise is exactly 0, since filters ask
    for zero.
    """
    if config.type == "none" or not rewards:
        return list(rewards)
    mean = math.fsum(rewards) / len(rewards)
    noise = 1e-12 * max(abs(reward) for reward in rewards)
    return [0.0 if abs(reward - mean) <= noise else reward - mean for reward in rewards]
