"""What happened to episodes: totals since the run's start, and a window since the last sealed batch."""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from echorl_core.names import ExitCode
from echorl_orchestrator.types import EpisodeOutcome, ErrorKind


class RunFailure(Exception):
    """The run cannot go on; its role ends with this exit code, and the message says why."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


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


class Counters:
    """Counters by name, twice: for the whole run (saved with every batch), and since the last ``new_window``."""

    def __init__(self, totals: Mapping[str, int] | None = None) -> None:
        self.totals: Counter[str] = Counter(totals or {})
        self._before = Counter(self.totals)
        self.window: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        """Count ``amount`` of ``name``."""
        self.totals[name] += amount
        self.window[name] += amount

    def drop(self, reason: Drop, episodes: int = 1) -> None:
        """Count finished episodes that train nothing."""
        self.add(f"dropped/{reason}", episodes)

    def outcome(self, outcome: EpisodeOutcome, kind: ErrorKind | None) -> None:
        """Count an episode that has ended; ``kind`` says why it failed."""
        self.add("episodes/finished" if kind is None else "episodes/failed")
        if kind is not None:
            self.add(f"failures/{kind}")
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


class FailureLimit:
    """Ends the run when too many episodes fail one after the other, training and evals together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_a_row = 0

    def another(self) -> "FailureLimit":
        """The same limit, for failures that are counted apart."""
        return FailureLimit(self._limit)

    def note_all(self, failed: int, kind: ErrorKind, message: str) -> None:
        """Count the failed episodes of a group; none: it went well.

        Raises:
            RunFailure: the limit is reached.
        """
        if not failed:
            self.note(None, None)
        for _ in range(failed):
            self.note(kind, message)

    def note(self, kind: ErrorKind | None, message: str | None) -> None:
        """Count an episode's end.

        Raises:
            RunFailure: the limit is reached.
        """
        if kind is ErrorKind.CANCELLED:
            return
        self._in_a_row = 0 if kind is None else self._in_a_row + 1
        if self._in_a_row >= self._limit:
            raise RunFailure(
                ExitCode.ENVIRONMENT,
                f"{self._in_a_row} episodes failed one after the other; the last one: {kind}: {message}",
            )
