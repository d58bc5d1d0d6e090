"""Rules that take episodes out of training: pure functions. Filtered ones stay in metrics, baselines and records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from echorl_core.config import FilterConfig


@dataclass(frozen=True)
class Verdict:
    """What the filters of one stage say about one episode."""

    hits: tuple[str, ...] = ()
    """Types of the filters that matched, enforced or not."""
    rl: bool = True
    """Whether the episode may train the RL loss."""
    ce: bool = True
    """Whether it may train the ECHO loss."""

    def and_then(self, other: "Verdict") -> "Verdict":
        """Both verdicts together."""
        return Verdict(self.hits + other.hits, self.rl and other.rl, self.ce and other.ce)


def judge(filters: Sequence[FilterConfig], stage: Literal["group", "batch"], advantage: float) -> Verdict:
    """Apply every filter of ``stage`` to an episode with this advantage.

    A filter that is not enforced only reports. Scope ``rl`` leaves the episode's ECHO weights on.
    """
    verdict = Verdict()
    for rule in filters:
        if rule.stage != stage or not _matches(rule, advantage):
            continue
        verdict = verdict.and_then(
            Verdict((rule.type,), rl=not rule.enforce, ce=not (rule.enforce and rule.scope == "all"))
        )
    return verdict


def _matches(rule: FilterConfig, advantage: float) -> bool:
    match rule.type:
        case "zeroAdvantage":
            return advantage == 0.0
