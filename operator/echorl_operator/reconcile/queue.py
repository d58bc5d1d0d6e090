"""Which run to look at next: each key at most once in the queue and never worked on twice at a time."""

import asyncio
import heapq
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from echorl_operator.metrics import Metrics
from echorl_operator.observed.runs import RunKey
from echorl_operator.reconcile.lanes import Lanes, Urgency

LONGEST_SLEEP_S: Final = 3600.0


@dataclass(frozen=True)
class QueueSettings:
    """Times of the queue, in seconds."""

    first_retry_s: float = 0.005
    longest_retry_s: float = 20.0
    """Short enough that a run comes right soon after whatever was wrong is put right."""


class WorkQueue:
    """Keys that are due, in turn over namespaces, and keys that are due later. Not for several threads."""

    def __init__(
        self,
        metrics: Metrics,
        settings: QueueSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        urgency: Callable[[RunKey], Urgency] = lambda _: Urgency.NONE,
    ) -> None:
        """``urgency``: of a run, whoever adds it."""
        self._urgency = urgency
        self._metrics, self._settings = metrics, settings or QueueSettings()
        self._clock, self._rng = clock, rng or random.Random()
        self._ready = Lanes()
        self._ready_since: dict[RunKey, float] = {}
        self._working: dict[RunKey, float] = {}
        self._again: dict[RunKey, bool] = {}
        """Added while it is worked on, and whether urgently."""
        self._later: list[tuple[float, int, RunKey]] = []
        self._due_at: dict[RunKey, float] = {}
        self._held_until: dict[RunKey, float] = {}
        self._failures: dict[RunKey, int] = {}
        self._order = 0
        self._paused = False
        self._changed = asyncio.Event()
        metrics.at_scrape("queue_depth", "Keys that are due.", (), lambda: [((), float(len(self)))])
        metrics.at_scrape("queue_delayed", "Keys that are due later.", (), lambda: [((), float(len(self._due_at)))])
        metrics.at_scrape("queue_oldest_seconds", "Of the key that waits longest.", (), lambda: [((), self.age())])
        metrics.at_scrape("reconcile_longest_seconds", "Of the pass that runs longest.", (), self._longest)

    def __len__(self) -> int:
        return len(self._ready_since)

    def age(self) -> float:
        """Seconds that the longest waiting due key has waited; 0 if none is due."""
        return self._clock() - min(self._ready_since.values()) if self._ready_since else 0.0

    def longest_running(self) -> float:
        """Seconds that the oldest pass has taken so far; 0 if none runs."""
        return self._clock() - min(self._working.values()) if self._working else 0.0

    @property
    def paused(self) -> bool:
        """Whether no key is handed out at present."""
        return self._paused

    def add(self, key: RunKey, *, urgent: bool = False) -> None:
        """A key is due: something changed.

        A key that backs off after a failure waits on, unless it is ``urgent`` (a person did something to it): its own
        failing writes make events, and these must not turn back-off into a busy loop. Urgent keys go before others.
        """
        if urgent:
            self._held_until.pop(key, None)
        if self._clock() < self._held_until.get(key, 0.0):
            return
        if key in self._working:
            self._again[key] = urgent or self._again.get(key, False)
        elif key not in self._ready_since:
            self._push(key, urgent=urgent)
        else:
            self._ready.hurry(key, self._lane(key, urgent=urgent))
            self._changed.set()

    def add_after(self, key: RunKey, seconds: float) -> None:
        """A key is due in ``seconds``, or earlier if that was said before; never before its back-off ends."""
        due = max(self._clock() + max(0.0, seconds), self._held_until.get(key, 0.0))
        if due < self._due_at.get(key, float("inf")):
            self._schedule(key, due)

    def retry(self, key: RunKey, at_least_s: float = 0.0) -> float:
        """A key failed: it is due again after its back-off, and not before. Returns the seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        ceiling = min(self._settings.longest_retry_s, self._settings.first_retry_s * 2.0 ** min(failures - 1, 60))
        wait_s = max(at_least_s, ceiling * (0.5 + self._rng.random() / 2))
        self._held_until[key] = self._clock() + wait_s
        self._again.pop(key, None)
        # What the last good pass wanted to wake up for is past; the next one will say anew.
        self._schedule(key, self._held_until[key])
        return wait_s

    def forget(self, key: RunKey) -> None:
        """A key succeeded, or its run is gone: the next failure is its first."""
        self._failures.pop(key, None)
        self._held_until.pop(key, None)

    def failures(self, key: RunKey) -> int:
        """How often in a row the key's passes have failed."""
        return self._failures.get(key, 0)

    def add_all(self, keys: Iterable[RunKey]) -> None:
        """All of these are due, and past failures are forgotten: they were not their own."""
        self._failures.clear()
        for key in keys:
            self.add(key, urgent=True)

    def pause(self) -> None:
        """Hand out no key; all that is added is kept."""
        self._paused = True

    def resume(self) -> None:
        """Hand out keys again."""
        self._paused = False
        self._changed.set()

    async def get(self, least: Urgency = Urgency.NONE) -> RunKey:
        """The next key of this urgency or more; ``done`` must follow. Waits until one is due."""
        while True:
            self._promote()
            if not self._paused and self._ready.any(least):
                return self._pop(least)
            self._changed.clear()
            try:
                async with asyncio.timeout(self._sleep_s()):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: RunKey) -> None:
        """The pass over a key ended; if it was added meanwhile it is due again."""
        del self._working[key]
        urgent = self._again.pop(key, None)
        if urgent is not None:
            self.add(key, urgent=urgent)

    def _schedule(self, key: RunKey, due: float) -> None:
        self._due_at[key] = due
        self._order += 1
        heapq.heappush(self._later, (due, self._order, key))
        if len(self._later) > 2 * len(self._due_at) + 64:
            self._later = [entry for entry in self._later if self._due_at.get(entry[2]) == entry[0]]
            heapq.heapify(self._later)
        self._changed.set()

    def _push(self, key: RunKey, *, urgent: bool) -> None:
        self._metrics.queue_adds.inc()
        self._ready_since[key] = self._clock()
        self._ready.push(key, self._lane(key, urgent=urgent))
        self._changed.set()

    def _lane(self, key: RunKey, *, urgent: bool) -> Urgency:
        return min(self._urgency(key), Urgency.STARTING if urgent else Urgency.NONE)

    def _pop(self, least: Urgency) -> RunKey:
        key = self._ready.pop(least)
        if self._ready:
            # Another worker may sleep although this one found more than it takes.
            self._changed.set()
        now = self._clock()
        self._metrics.queue_wait.observe(now - self._ready_since.pop(key))
        self._working[key] = now
        return key

    def _promote(self) -> None:
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            # An earlier time may have been said since; then this entry is none any more.
            if self._due_at.get(key) == due:
                del self._due_at[key]
                if self._held_until.get(key, due) <= due:
                    self._held_until.pop(key, None)
                self.add(key)

    def _sleep_s(self) -> float:
        if not self._later:
            return LONGEST_SLEEP_S
        return min(LONGEST_SLEEP_S, max(0.0, self._later[0][0] - self._clock()))

    def _longest(self) -> list[tuple[tuple[str, ...], float]]:
        return [((), self.longest_running())]
