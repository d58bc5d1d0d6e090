"""Workers take keys from the queue, make one pass over each, and put failures where they belong."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Never

import structlog

from echorl_operator.kube import errors
from echorl_operator.metrics import Metrics
from echorl_operator.observed.runs import RunKey
from echorl_operator.reconcile.breaker import Breaker, suspicious
from echorl_operator.reconcile.lanes import Urgency
from echorl_operator.reconcile.queue import WorkQueue

_log = structlog.get_logger()

Reconcile = Callable[[RunKey], Awaitable[float | None]]
"""One pass over a run. Returns after how many seconds to look again although nothing changed; None: only then."""


@dataclass(frozen=True)
class WorkerSettings:
    """How passes are made."""

    workers: int = 8
    for_edits: int = 2
    """More of them, for runs alone that somebody has edited: these wait for no pass over another run to end."""
    pass_s: float = 120.0
    """Longest pass; over it, it is cancelled and counts as failed."""
    throttled_s: float = 5.0
    """Wait after a 429 that names no time itself."""
    longest_throttled_s: float = 20.0
    """Longest wait after a 429, whatever it says: a server that asked for more may be well again long before."""


class Workers:
    """N workers on one queue."""

    def __init__(
        self,
        queue: WorkQueue,
        breaker: Breaker,
        reconcile: Reconcile,
        metrics: Metrics,
        settings: WorkerSettings | None = None,
    ) -> None:
        self._queue, self._breaker, self._reconcile, self._metrics = queue, breaker, reconcile, metrics
        self._settings = settings or WorkerSettings()

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._settings.workers):
                group.create_task(self._work(Urgency.NONE), name=f"worker {number}")
            for number in range(self._settings.for_edits):
                group.create_task(self._work(Urgency.EDITED), name=f"worker for edits {number}")

    async def _work(self, least: Urgency) -> Never:
        while True:
            key = await self._queue.get(least)
            started = time.monotonic()
            try:
                result = await self._pass(key)
            finally:
                self._queue.done(key)
            self._metrics.reconciles.labels(result).inc()
            self._metrics.reconcile_seconds.observe(time.monotonic() - started)

    async def _pass(self, key: RunKey) -> str:
        """One pass; returns how it ended, for metrics."""
        try:
            async with asyncio.timeout(self._settings.pass_s):
                wake_s = await self._reconcile(key)
        except errors.ApiError as error:
            return await self._call_failed(key, error)
        except TimeoutError:
            self._retry(key, f"took longer than {self._settings.pass_s:.0f} s")
            return "timeout"
        except Exception:
            # One run that trips over our own bug must not stop the others.
            wait_s = self._queue.retry(key)
            _log.exception("a pass failed", run=_name(key), retry_s=round(wait_s, 3))
            return "error"
        self._queue.forget(key)
        if wake_s is not None:
            self._queue.add_after(key, wake_s)
        return "ok"

    async def _call_failed(self, key: RunKey, error: errors.ApiError) -> str:
        if suspicious(error) and await self._breaker.confirm(error):
            # Not this run's fault: all are looked at again once the server answers.
            return "unavailable"
        if isinstance(error, errors.TooManyRequests):
            wait_s = error.retry_after_s
            wait_s = self._settings.throttled_s if wait_s is None else wait_s
            self._retry(key, str(error), min(wait_s, self._settings.longest_throttled_s))
            return "throttled"
        self._retry(key, str(error))
        return type(error).__name__

    def _retry(self, key: RunKey, why: str, at_least_s: float = 0.0) -> None:
        wait_s = self._queue.retry(key, at_least_s)
        _log.info("a pass ended early", run=_name(key), reason=why, retry_s=round(wait_s, 3))


def _name(key: RunKey) -> str:
    return f"{key.namespace}/{key.name}"
