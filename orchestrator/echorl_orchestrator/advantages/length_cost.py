"""What an episode cost, for length shaping: pure functions."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from echorl_core.config import LengthShapingConfig
from echorl_core.wire.batch import Sample, TokenRole
from echorl_orchestrator.episode_outcome import EpisodeOutcome


def cost_of(outcome: EpisodeOutcome, config: LengthShapingConfig) -> float:
    """Turns, or tokens by weight: every token that an engine sampled, and those that the environment wrote."""
    if config.by == "turns":
        return float(outcome.num_turns)
    written = outcome.environment_tokens
    return config.completion_weight * outcome.sampled_tokens + config.environment_weight * written


def environment_tokens(samples: Sequence[Sample]) -> int:
    """Tokens that the environment wrote, warnings included, over an episode's branches; shared ones count once."""
    total = 0
    for index, sample in enumerate(samples):
        shared = max((_common(sample.token_ids, earlier.token_ids) for earlier in samples[:index]), default=0)
        total += int(np.isin(sample.role[shared:], (TokenRole.ENV_OUTPUT, TokenRole.WARNING)).sum())
    return total


def _common(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    """Length of the common prefix."""
    length = min(len(left), len(right))
    differing = np.flatnonzero(left[:length] != right[:length])
    return int(differing[0]) if len(differing) else length
