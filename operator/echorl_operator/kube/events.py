"""Kubernetes events on runs: repeated ones become a series, and one run cannot flood the API server."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from echorl_operator import names
from echorl_operator.kube import errors
from echorl_operator.kube.connection import Call, Connection
from echorl_operator.kube.resources import EVENT, RUN
from echorl_operator.kube.times import micro_now
from echorl_operator.metrics import Metrics
from echorl_operator.observed.runs import RunRecord

REPORTER: Final = f"{names.GROUP}/operator"
NOTE_LIMIT: Final = 1024
"""Bytes of a message; the API server refuses longer ones."""
INSTANCE_LIMIT: Final = 128
"""Characters of a reporter's name; the same."""
_TIMEOUT_S: Final = 5.0

_log = structlog.get_logger()


@dataclass(frozen=True)
class EventLimits:
    """How many events are posted of one run, and how often one that repeats."""

    burst: int = 25
    """The most events of one run that are posted at once."""
    refill_s: float = 10.0
    """After each of these one more may be posted."""
    series_s: float = 60.0
    """A repeated event is told at most so often; what happens in between is counted."""
    forget_s: float = 3600.0
    """A run of which nothing happened for so long is forgotten; events live as long by default."""


@dataclass
class _Series:
    count: int
    posted_at: float
    posted_count: int


@dataclass
class _OfRun:
    tokens: float
    filled_at: float
    series: dict[str, _Series]


class Events:
    """Posts events. A failure is logged and counted, never raised: an event is worth no pass."""

    def __init__(
        self,
        connection: Connection,
        instance: str,
        metrics: Metrics,
        *,
        limits: EventLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``instance``: of this operator's process."""
        self._connection, self._metrics, self._clock = connection, metrics, clock
        self._instance = instance[:INSTANCE_LIMIT]
        self._limits = limits or EventLimits()
        self._runs: dict[str, _OfRun] = {}

    async def post(self, run: RunRecord, kind: str, reason: str, message: str, action: str = "Reconcile") -> None:
        """Tell that something happened to a run.

        Args:
            run: Which.
            kind: Normal or Warning.
            reason: CamelCase, at most 128 characters.
            message: For people.
            action: What the operator was doing; CamelCase.
        """
        now = self._clock()
        self._forget_idle(now)
        body = self._body(run, kind, reason, message) | {"action": action}
        name, limits = str(body["metadata"]["name"]), self._limits
        bucket = self._runs.setdefault(run.uid, _OfRun(float(limits.burst), now, {}))
        series = bucket.series.get(name)
        if series is not None:
            series.count += 1
            if now - series.posted_at < limits.series_s:
                self._metrics.events.labels("merged").inc()
                return
        bucket.tokens = min(float(limits.burst), bucket.tokens + (now - bucket.filled_at) / limits.refill_s)
        bucket.filled_at = now
        if bucket.tokens < 1:
            self._metrics.events.labels("dropped").inc()
            return
        bucket.tokens -= 1
        if series is None:
            series = bucket.series[name] = _Series(1, now, 0)
        series.posted_at = now
        await self._send(run.key.namespace, name, series, body)

    async def _send(self, namespace: str, name: str, series: _Series, body: dict[str, Any]) -> None:
        try:
            if series.posted_count == 0 and await self._create(namespace, body):
                series.posted_count = series.count
            else:
                series.count = max(2, series.count)
                await self._continue(namespace, name, series, body)
        except errors.ApiError as error:
            self._metrics.events.labels("failed").inc()
            _log.warning(
                "an event could not be posted", run=f"{namespace}/{body['regarding']['name']}", error=str(error)
            )
            return
        self._metrics.events.labels("posted").inc()

    async def _create(self, namespace: str, body: dict[str, Any]) -> bool:
        call = Call("create", EVENT.path(namespace), EVENT.plural, body=body, timeout_s=_TIMEOUT_S)
        try:
            await self._connection.request(call)
        except errors.AlreadyExists:
            return False
        return True

    async def _continue(self, namespace: str, name: str, series: _Series, body: dict[str, Any]) -> None:
        patch = {"series": {"count": series.count, "lastObservedTime": micro_now()}}
        call = Call("patch", EVENT.path(namespace, name), EVENT.plural, body=patch, timeout_s=_TIMEOUT_S)
        try:
            await self._connection.request(call)
        except errors.NotFound:
            # Its time to live ended.
            series.count = 1
            await self._create(namespace, body)
        series.posted_count = series.count

    def _body(self, run: RunRecord, kind: str, reason: str, message: str) -> dict[str, Any]:
        note = _shortened(message)
        # The same for the same event, so that an operator that restarts continues a series.
        digest = hashlib.sha256("\0".join((run.uid, kind, reason, note)).encode()).hexdigest()[:16]
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"namespace": run.key.namespace, "name": f"{run.key.name}.{digest}"},
            "eventTime": micro_now(),
            "reportingController": REPORTER,
            "reportingInstance": self._instance,
            "reason": reason,
            "regarding": {
                "apiVersion": RUN.api_version,
                "kind": RUN.kind,
                "namespace": run.key.namespace,
                "name": run.key.name,
                "uid": run.uid,
            },
            "note": note,
            "type": kind,
        }

    def _forget_idle(self, now: float) -> None:
        idle = [uid for uid, bucket in self._runs.items() if now - bucket.filled_at > self._limits.forget_s]
        for uid in idle:
            del self._runs[uid]


def _shortened(message: str) -> str:
    text = message.encode()
    return message if len(text) <= NOTE_LIMIT else text[: NOTE_LIMIT - 3].decode(errors="ignore") + "..."
