"""Rows on their way to one monitor: a bounded queue, and a process that is started again when it fails.

Nothing here may reach the run: ``put`` never waits, and every failure ends in a count and a line in the log.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from echorl_orchestrator.metrics.process_counters import MONITOR_DROPPED, MONITOR_FAILURES, MONITOR_WRITTEN
from echorl_orchestrator.monitors.link import Launch, Link, MonitorError
from echorl_orchestrator.monitors.rows import Row

log = structlog.get_logger()


@dataclass(frozen=True)
class FeedLimits:
    """Bounds of one feed."""

    rows: int = 512
    """That may wait; beyond them the oldest are dropped."""
    start_s: float = 300.0
    """Until a process has opened its monitor."""
    row_s: float = 120.0
    """Until a row is written."""
    first_wait_s: float = 2.0
    """Before the first restart; doubled at each further one."""
    longest_wait_s: float = 300.0
    give_up_s: float = 7200.0
    """Failing for so long, a monitor is off until the orchestrator starts again."""


class Feed:
    """Rows of one monitor."""

    def __init__(
        self, launch: Launch, limits: FeedLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._launch, self._limits, self._clock = launch, limits or FeedLimits(), clock
        self._rows: deque[Row] = deque()
        self._came = asyncio.Event()
        self._link: Link | None = None
        self._in_flight = 0
        self._wait_s = self._limits.first_wait_s
        self._failing_since: float | None = None
        self.off = False
        """It was given up."""
        self.written = 0
        self.dropped = 0
        self.failures = 0
        # Shown from the start: a rate needs a first value of 0.
        for counter in (MONITOR_WRITTEN, MONITOR_DROPPED, MONITOR_FAILURES):
            counter.labels(launch.name)

    def put(self, row: Row) -> None:
        """Have a row written soon; never waits."""
        self._rows.append(row)
        if self.off or len(self._rows) > self._limits.rows:
            self._rows.popleft()
            self._drop(1)
        self._came.set()

    async def run(self) -> None:
        """Write rows until cancelled."""
        while not self.off:
            try:
                await self._live()
            except (MonitorError, OSError) as error:
                self._part()
                await asyncio.sleep(self._again_in(error))
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Write what waits and end the process; cancelled, it ends the process at once."""
        waiting = len(self._rows) + self._in_flight
        try:
            if self._link is not None:
                for row in self._rows:
                    self._link.send(row)
                self._wrote(min(waiting, await self._link.finish()))
                waiting = 0
        except (MonitorError, OSError) as error:
            self._count_failure()
            log.warning("a monitor failed at its end", monitor=self._launch.name, reason=str(error))
        finally:
            self._drop(waiting)
            self._rows.clear()
            self._part()

    async def _live(self) -> None:
        if self._link is None:
            self._link = await Link.start(self._launch)
            await self._link.ask(self._launch.opening, self._limits.start_s)
        while True:
            while not self._rows:
                self._came.clear()
                await self._came.wait()
            row = self._rows.popleft()
            self._in_flight = 1
            try:
                await self._link.ask(row, self._limits.row_s)
            except (MonitorError, OSError):
                self._rows.appendleft(row)
                self._in_flight = 0
                raise
            self._in_flight = 0
            self._wrote(1)
            self._works()

    def _part(self) -> None:
        if self._link is not None:
            self._link.kill()
            self._link = None

    def _works(self) -> None:
        if self._failing_since is not None:
            log.info("a monitor works again", monitor=self._launch.name)
        self._failing_since, self._wait_s = None, self._limits.first_wait_s

    def _again_in(self, error: Exception) -> float:
        """Seconds until the next start; tells the first failure of a series, and the last one."""
        self._count_failure()
        now = self._clock()
        about = {"monitor": self._launch.name, "reason": str(error)}
        if self._failing_since is None:
            self._failing_since = now
            log.warning("a monitor failed, and is started again; the run goes on", **about)
        elif now - self._failing_since >= self._limits.give_up_s:
            self.off = True
            self._drop(len(self._rows))
            self._rows.clear()
            log.error("a monitor is given up; the run goes on without it", **about)
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, self._limits.longest_wait_s)
        return wait_s

    def _wrote(self, rows: int) -> None:
        self.written += rows
        MONITOR_WRITTEN.labels(self._launch.name).inc(rows)

    def _drop(self, rows: int) -> None:
        if rows and not self.dropped:
            log.warning("rows for a monitor are dropped; further ones are only counted", monitor=self._launch.name)
        self.dropped += rows
        MONITOR_DROPPED.labels(self._launch.name).inc(rows)

    def _count_failure(self) -> None:
        self.failures += 1
        MONITOR_FAILURES.labels(self._launch.name).inc()
