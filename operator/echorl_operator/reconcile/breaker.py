"""Tells an API server that does not answer from a write that fails, and stops all work while it does not."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Never

import structlog

from echorl_operator.kube.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from echorl_operator.metrics import Metrics

PROBE_EVERY_S: Final = 2.0

_ANSWERED = (Conflict, Gone, NotFound, TooManyRequests)
"""Failures of the probe after which the server is there all the same."""

_SUSPICIOUS = (Unavailable, Unauthorized, Forbidden)

_log = structlog.get_logger()


def suspicious(error: Exception) -> bool:
    """Whether a failure may mean that the API server serves nobody, or not us."""
    return isinstance(error, _SUSPICIOUS)


class Breaker:
    """Closed while the API server serves us; open from a failure that a probe confirms until a probe succeeds."""

    def __init__(
        self,
        probe: Callable[[], Awaitable[object]],
        *,
        on_open: Callable[[], None],
        on_close: Callable[[], None],
        metrics: Metrics,
        interval_s: float = PROBE_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``run`` must be running for an open breaker to close.

        Args:
            probe: A cheap read with our rights and a short time-out; raises ``ApiError`` if it fails.
            on_open: Stop working.
            on_close: Look at everything again.
            metrics: Counts.
            interval_s: Between probes while open.
            clock: Monotonic seconds.
        """
        self._probe, self._on_open, self._on_close, self._metrics = probe, on_open, on_close, metrics
        self._interval_s, self._clock = interval_s, clock
        self.open = False
        """Whether the API server does not serve us."""
        self._wake = asyncio.Event()
        self._suspicion: Exception | None = None
        self._probing: asyncio.Future[ApiError | None] | None = None
        self.reachable_since = clock()
        """When the API server last began to answer; meaningless while open."""

    def suspect(self, error: Exception) -> None:
        """A call outside a pass failed; ``run`` confirms it soon. Errors that say nothing of the server are ignored."""
        if suspicious(error) and not self.open:
            self._suspicion = error
            self._wake.set()

    async def confirm(self, error: Exception) -> bool:
        """Ask the server at once whether ``error`` means that it does not serve us; if so, open.

        Many callers at a time share one probe.

        Returns:
            False: it answers, so the failure belongs to the call that failed.
        """
        if self.open:
            return True
        if self._probing is None:
            self._probing = asyncio.ensure_future(self._refusal())
            self._probing.add_done_callback(lambda _: setattr(self, "_probing", None))
        refusal = await asyncio.shield(self._probing)
        if refusal is not None and not self.open:
            _log.warning("the API server does not serve us; work stops", error=str(error), probe=str(refusal))
            self._metrics.breaker_open.set(1)
            self._metrics.breaker_opened.inc()
            self.open = True
            self._wake.set()
            self._on_open()
        return refusal is not None

    async def run(self) -> Never:
        """Look into suspicions, and probe while open, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            suspicion, self._suspicion = self._suspicion, None
            if suspicion is not None:
                await self.confirm(suspicion)
            while self.open:
                await asyncio.sleep(self._interval_s)
                if await self._refusal() is None:
                    self._close()

    def _close(self) -> None:
        self.open = False
        self.reachable_since = self._clock()
        self._metrics.breaker_open.set(0)
        _log.info("the API server serves us again")
        self._on_close()

    async def _refusal(self) -> ApiError | None:
        """Why a probe failed; None if it was answered."""
        try:
            await self._probe()
        except _ANSWERED:
            return None
        except ApiError as error:
            return error
        return None
