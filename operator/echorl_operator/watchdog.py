"""Tells the liveness and readiness probes whether this process still does its work."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Watched(Protocol):
    """A stream, as far as the watchdog looks at it."""

    @property
    def name(self) -> str:
        """The stream's name, for messages."""

    def age(self, now: float | None = None) -> float:
        """Seconds since anything was heard of the stream."""


@dataclass(frozen=True)
class WatchdogLimits:
    """After how many seconds something is wrong."""

    silence_s: float = 150.0
    """Longest silence of a stream while the API server answers."""
    pass_s: float = 300.0
    """Longest pass over a run; each has a deadline well below."""
    election_s: float = 60.0
    """Longest time between two tries of the election."""


@dataclass(frozen=True)
class Vitals:
    """Where the watchdog looks; all are read at each probe."""

    streams: Callable[[], Sequence[Watched]]
    synced: Callable[[], bool]
    api_down: Callable[[], bool]
    """Whether the breaker is open."""
    reachable_since: Callable[[], float]
    """When the API server last began to answer; on the watchdog's clock."""
    longest_pass_s: Callable[[], float]
    """Seconds that the longest of the passes which run now has taken."""
    election_round: Callable[[], float | None]
    """When the election last tried; None if there is no election."""


class Watchdog:
    """Liveness and readiness. An API server that is down is no reason to die: dying would not mend it."""

    def __init__(
        self, vitals: Vitals, limits: WatchdogLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._vitals, self._limits, self._clock = vitals, limits or WatchdogLimits(), clock

    def not_alive(self) -> str | None:
        """Why this process must be restarted; None if it need not."""
        now, vitals, limits = self._clock(), self._vitals, self._limits
        longest_s, round_at = vitals.longest_pass_s(), vitals.election_round()
        if longest_s > limits.pass_s:
            return f"a pass has taken {longest_s:.0f} s; the limit is {limits.pass_s:.0f}"
        if round_at is not None and now - round_at > limits.election_s:
            return f"the election has not tried for {now - round_at:.0f} s; the limit is {limits.election_s:.0f}"
        return None if vitals.api_down() else self._silent(now)

    def not_ready(self) -> str | None:
        """Why this process cannot do its work now; None if it can, as leader or in reserve."""
        if not self._vitals.synced():
            return "not everything has been listed yet"
        if self._vitals.api_down():
            return "the API server does not answer"
        return self.not_alive()

    def _silent(self, now: float) -> str | None:
        """Name a stream that has not come back although the server has answered for long enough."""
        reachable_s = now - self._vitals.reachable_since()
        late = [(min(stream.age(now), reachable_s), stream.name) for stream in self._vitals.streams()]
        worst = max(late, default=(0.0, ""))
        if worst[0] <= self._limits.silence_s:
            return None
        return f"nothing heard of {worst[1]} for {worst[0]:.0f} s; the limit is {self._limits.silence_s:.0f}"
