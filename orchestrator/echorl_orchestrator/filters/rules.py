"""Rules that take episodes out of training: pure functions. Filtered ones stay in metrics, baselines and records.

matches         which of the rules hold for an episode, by what it sampled
group_matches   which hold for every episode of a group, by its rewards
judge           what the rules of one stage then take from an episode
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from echorl_core.config import FilterConfig
from echorl_core.wire.batch import Sample
from echorl_orchestrator.filters.text_filters import is_gibberish, is_repetition


@dataclass(frozen=True)
class Verdict:
    """What the filters of one stage say about one episode."""

    hits: tuple[str, ...] = ()
    """Names of the filters that matched, enforced or not; each once."""
    rl: bool = True
    """Whether the episode may train the RL loss."""
    ce: bool = True
    """Whether it may train the ECHO loss."""

    @property
    def filtered(self) -> bool:
        """Whether an enforced filter took the episode out of a component."""
        return not (self.rl and self.ce)

    def and_then(self, other: "Verdict") -> "Verdict":
        """Both verdicts together."""
        hits = self.hits + tuple(name for name in other.hits if name not in self.hits)
        return Verdict(hits, self.rl and other.rl, self.ce and other.ce)


def matches(filters: Sequence[FilterConfig], samples: Sequence[Sample], vocab_size: int | None) -> frozenset[int]:
    """Indices of the rules that hold for what an episode sampled: ``gibberish`` and ``repetition``.

    Args:
        filters: of all stages.
        samples: the episode's.
        vocab_size: of the model; needed where a rule asks for gibberish.
    """
    return frozenset(index for index, rule in enumerate(filters) if _holds(rule, samples, vocab_size))


def group_matches(filters: Sequence[FilterConfig], rewards: Sequence[float]) -> frozenset[int]:
    """Indices of the rules ``difficulty`` that find a group with these rewards, at least one, too easy or too hard."""
    mean = math.fsum(rewards) / len(rewards)
    return frozenset(
        index
        for index, rule in enumerate(filters)
        if rule.type == "difficulty" and not rule.hard_to < mean < rule.easy_from
    )


def judge(
    filters: Sequence[FilterConfig],
    stage: Literal["group", "batch"],
    advantage: float,
    matched: Collection[int] = (),
) -> Verdict:
    """Apply every filter of ``stage`` to an episode with this advantage.

    A filter that is not enforced only reports. Scope ``rl`` leaves the episode's ECHO weights on.

    Args:
        filters: of all stages.
        stage: whose rules act.
        advantage: of the episode; ``zeroAdvantage`` asks for it.
        matched: indices of the other rules that hold.
    """
    verdict = Verdict()
    for index, rule in enumerate(filters):
        holds = advantage == 0.0 if rule.type == "zeroAdvantage" else index in matched
        if rule.stage == stage and holds:
            verdict = verdict.and_then(
                Verdict((rule.name,), rl=not rule.enforce, ce=not (rule.enforce and rule.scope == "all"))
            )
    return verdict


def _holds(rule: FilterConfig, samples: Sequence[Sample], vocab_size: int | None) -> bool:
    if rule.type == "repetition":
        return any(is_repetition(sample) for sample in samples)
    if rule.type != "gibberish":
        return False
    if vocab_size is None:
        raise ValueError("filter gibberish: the size of the vocabulary is not known")
    return any(is_gibberish(sample, vocab_size) for sample in samples)
