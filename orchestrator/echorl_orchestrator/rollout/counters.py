"""What happened to episodes: totals since the run's start, and a window since the last sealed batch."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from echorl_core.wire.goodput import TimeState
from echorl_orchestrator.episode_outcome import EpisodeOutcome
from echorl_orchestrator.failures import ErrorKind, FailureLimit
from echorl_orchestrator.rollout.infrastructure_losses import InfrastructureLosses


class Drop(StrEnum):
    """Why an episode that finished well trains nothing."""

    STALE = "stale"
    """Too old when its batch was sealed."""
    FILTERED = "filtered"
    """A group-stage filter left nothing of it to train."""
    GROUP = "group"
    """It belonged to a group that falls as a whole."""
    EMPTY_BATCH = "emptyBatch"
    """Its batch had nothing to train in any component; or itself, where batches are measured in tokens."""
    UNUSED = "unused"
    """The run ended before a batch took it."""


_WASTED = {
    Drop.STALE: TimeState.STALE,
    Drop.FILTERED: TimeState.FILTERED,
    Drop.GROUP: TimeState.FAILED,
    Drop.EMPTY_BATCH: TimeState.FILTERED,
    Drop.UNUSED: TimeState.UNUSED,
}
"""What the time was for that episodes were sampled in."""


def wasted(kind: ErrorKind) -> TimeState:
    """What the time was for that a failed episode, or a failed try of one, was sampled in."""
    if kind is ErrorKind.CANCELLED:
        return TimeState.STALE
    return TimeState.ENGINE_LOST if kind is ErrorKind.PROVIDER else TimeState.FAILED


class Counters:
    """Counters by name, twice: for the whole run (saved with every batch), and since the last ``new_window``."""

    def __init__(
        self,
        totals: Mapping[str, int] | None = None,
        on_decided: Callable[[str, TimeState], None] = lambda episode, state: None,
    ) -> None:
        """``on_decided`` gets the name of each episode that will train nothing, and what its time was for."""
        self._on_decided = on_decided
        self.totals: Counter[str] = Counter(totals or {})
        self._before = Counter(self.totals)
        self.window: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        """Count ``amount`` of ``name``."""
        self.totals[name] += amount
        self.window[name] += amount

    def drop(self, reason: Drop, outcomes: Sequence[EpisodeOutcome]) -> None:
        """Count finished episodes that train nothing."""
        self.add(f"dropped/{reason}", len(outcomes))
        for outcome in outcomes:
            self._on_decided(outcome.episode, _WASTED[reason])

    def failed(self, outcome: EpisodeOutcome, kind: ErrorKind) -> None:
        """An episode, or a try of one, trains nothing because it failed. Not counted."""
        self._on_decided(outcome.episode, wasted(kind))

    def outcome(self, outcome: EpisodeOutcome, kind: ErrorKind | None) -> None:
        """Count an episode that has ended; ``kind`` says why it failed."""
        self.add("episodes/finished" if kind is None else "episodes/failed")
        if kind is not None:
            self.add(f"failures/{kind}")
            self.failed(outcome, kind)
        self.add("tokens/sampled", outcome.sampled_tokens)
        self.add("branches/dropped", outcome.dropped_branches)
        self.add("episodes/unattributed", int(outcome.unattributed))
        if outcome.units:
            self.add("turns/parse_errors", outcome.parse_errors)

    def counted(self) -> dict[str, int]:
        """What this process has counted: from 0, so that a reader sees a restart as one, also if totals went back."""
        return {name: value - self._before[name] for name, value in self.totals.items()}

    def new_window(self) -> dict[str, int]:
        """What the window counted; the next one starts empty."""
        window, self.window = dict(self.window), Counter()
        return window


@dataclass(frozen=True)
class EpisodeLedger:
    """Who hears of every train episode that has ended."""

    counters: Counters
    failures: FailureLimit
    losses: InfrastructureLosses
    on_progress: Callable[[], None] = lambda: None

    def ended(self, outcome: EpisodeOutcome, kind: ErrorKind | None) -> None:
        """Count an episode that has ended; ``kind`` says why it failed.

        Raises:
            RunFailure: too many failures in a row.
        """
        self.counters.outcome(outcome, kind)
        self.losses.note(outcome, kind)
        self.on_progress()
        self.failures.note(kind, outcome.error)
