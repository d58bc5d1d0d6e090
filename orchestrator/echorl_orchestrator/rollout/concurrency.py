"""How many train episodes are in flight: fewer than ``maxConcurrent`` allows while engines are overloaded.

An engine without room in its KV cache puts requests back and computes them anew, and what waits in its queue was begun
earlier, and may be too old sooner, than what waits here. So the bound is cut while requests are put back or most of
them wait, and grows while there is room and it is the bound that holds episodes back.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import structlog

log = structlog.get_logger()

LOOK_S = 10.0
"""Between two looks; engines' metrics are read more often."""
FEWEST = 16
"""Whatever engines say, so many episodes may run."""
CUT, GROWTH = 0.8, 1.25
ROOMY, FULL = 0.8, 0.9
"""Shares of the fullest engine's KV cache: below the first there is room for more, from the second on there is none."""

Load = Callable[[], Mapping[str, float]]
"""``EngineMetrics.snapshot``: ``running``, ``waiting``, ``kv_usage_max``, ``preemptions_total``."""


class Concurrency:
    """A bound on train episodes in flight, of all environments together, that follows what engines tell."""

    def __init__(self, load: Load, *, clock: Callable[[], float] = time.monotonic, look_s: float = LOOK_S) -> None:
        self._load, self._clock, self._look_s = load, clock, look_s
        self._looked_at, self._preemptions = clock(), load().get("preemptions_total", 0.0)
        self._first = asyncio.Lock()
        """Held by whoever is to begin next; others wait in the order of asking."""
        self._changed = asyncio.Event()
        self.in_flight = 0
        self._most = 0
        """Of ``in_flight`` since the last look: between two batches there are few."""
        self.limit: int | None = None
        """None: engines have never been overloaded."""

    @asynccontextmanager
    async def room(self) -> AsyncIterator[None]:
        """To be held while an episode is played; waits while as many are as may be."""
        async with self._first:
            while self._is_full():
                self._changed.clear()
                try:
                    async with asyncio.timeout(self._look_s):
                        await self._changed.wait()
                except TimeoutError:
                    continue
            self.in_flight += 1
            self._most = max(self._most, self.in_flight)
        try:
            yield
        finally:
            self.in_flight -= 1
            self._changed.set()

    def _is_full(self) -> bool:
        self.look()
        return self.limit is not None and self.in_flight >= self.limit

    def look(self) -> None:
        """Follow the engines, if it is time."""
        if self._clock() < self._looked_at + self._look_s:
            return
        self._looked_at, load = self._clock(), self._load()
        preempted = load.get("preemptions_total", 0.0) - self._preemptions
        self._preemptions += preempted
        running, waiting, usage = (load.get(name, 0.0) for name in ("running", "waiting", "kv_usage_max"))
        # Evals are played beside these episodes, and fewer of these do not make up for them.
        is_own = running + waiting <= self._most
        # A new version puts requests back, too, whatever room there is.
        is_short = preempted > 0 and usage >= FULL
        found = bounded(
            self.limit,
            self._most,
            overloaded=is_own and (is_short or waiting > running),
            roomy=usage < ROOMY and not waiting,
        )
        if found != self.limit:
            told = {"preempted": int(preempted), "waiting": int(waiting), "running": int(running), "kv_usage": usage}
            log.info("episodes in flight are bounded", limit=found, before=self.limit, in_flight=self._most, **told)
        self.limit, self._most = found, self.in_flight


def bounded(limit: int | None, in_flight: int, *, overloaded: bool, roomy: bool) -> int | None:
    """The bound after ``limit``, with at most ``in_flight`` episodes and engines that are overloaded, or have room."""
    if overloaded:
        # A cut that episodes in flight have not come down to yet has not been tried.
        settled = limit is None or in_flight <= limit
        return max(FEWEST, math.floor(CUT * in_flight)) if settled else limit
    if limit is not None and roomy and in_flight >= limit:
        return math.ceil(GROWTH * limit)
    return limit
