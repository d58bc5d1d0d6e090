"""What a run's mode means for rollout: versions, group scores, advantages. ``episode_players`` says who plays."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ModeTraits:
    """What follows of one ``BatchConfig.mode``."""

    versions: bool
    """The policy samples what trains: episodes wait for engines, start at a version, and can grow too old."""
    group_scores: bool
    """Environments that score groups are asked for it; conversations need no reward to be learned from."""
    advantages: bool
    """Episodes have advantages; without them all are 0."""


MODES: Mapping[str, ModeTraits] = {
    "rl": ModeTraits(versions=True, group_scores=True, advantages=True),
    "opd": ModeTraits(versions=True, group_scores=True, advantages=False),
    "sft": ModeTraits(versions=False, group_scores=False, advantages=False),
}
