"""Is the role alive in fact: does the event loop turn, and do episodes end while some are in flight."""

import asyncio
import time
from collections.abc import Callable

TICK_S = 0.5
LONGEST_LAG_S = 5.0


class Health:
    """Whether episodes end and the event loop turns."""

    def __init__(self, *, longest_silence_s: float, busy: Callable[[], bool]) -> None:
        """``busy``: whether there is work of our own under way; waiting for the trainer is no reason to be ended."""
        self._longest_silence_s, self._busy = longest_silence_s, busy
        self._last = time.monotonic()
        self._looked = time.monotonic()
        self.lag_s = 0.0
        """How much longer than it should the last tick took, seconds."""
        self.max_lag_s = 0.0
        self.idle_s = 0.0
        """Seconds without any episode in flight, so far."""

    def beat(self) -> None:
        """Something was brought to its end."""
        self._last = time.monotonic()

    def problem(self) -> str | None:
        """Why the role is not healthy; None if it is."""
        if self.lag_s > LONGEST_LAG_S:
            return f"the event loop was blocked for {self.lag_s:.1f} s"
        silence = time.monotonic() - self._last
        if silence > self._longest_silence_s:
            return f"episodes are in flight, but none has ended for {silence:.0f} s"
        return None

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            started = time.monotonic()
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self.tick(now - started, now)

    def tick(self, took_s: float, now: float) -> None:
        """Take in that a pause of ``TICK_S`` took ``took_s``."""
        self.lag_s = max(0.0, took_s - TICK_S)
        self.max_lag_s = max(self.max_lag_s, self.lag_s)
        if not self._busy():
            self.idle_s += now - self._looked
            self.beat()
        self._looked = now
