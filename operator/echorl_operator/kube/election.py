"""Leader election by a Lease. Whoever leads knows from its own clock when it must have stopped.

Time is judged by the monotonic clock of this process alone: another holder counts as alive for its lease's duration
since *we* last saw the Lease change, and our own lease counts from before the renewal was sent. So clocks that differ
between machines, requests that hang and processes that hang cannot make two leaders.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog

from echorl_operator.kube import errors
from echorl_operator.kube.connection import Call, Connection
from echorl_operator.kube.resources import LEASE
from echorl_operator.kube.times import micro_now
from echorl_operator.metrics import Metrics

EXIT_LOST_LEADERSHIP: Final = 70
"""Exit code of an operator that lost its lease: it ends at once, and the kubelet starts it anew as a candidate."""

_log = structlog.get_logger()


class LostLeadership(Exception):
    """Another process may lead now."""


@dataclass(frozen=True)
class ElectionSettings:
    """Times of the election, in seconds."""

    lease_s: float = 15.0
    """How long others wait after the last renewal that they saw."""
    renew_deadline_s: float = 10.0
    """How long after its last renewal a leader stops. Must leave room for what it has sent before."""
    retry_s: float = 2.0
    """Wait between two tries."""
    request_s: float = 1.5
    """Time-out of a request; twice as long after each that timed out, since a slow server is no reason to stop."""

    def __post_init__(self) -> None:
        if not 0 < self.request_s < self.retry_s < self.renew_deadline_s < self.lease_s:
            raise ValueError(
                "election: accepted is request_s < retry_s < renew_deadline_s < lease_s, "
                f"found {self.request_s}, {self.retry_s}, {self.renew_deadline_s}, {self.lease_s}"
            )


class _Spec(msgspec.Struct, rename="camel", omit_defaults=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Lease(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)


_LEASE = msgspec.json.Decoder(_Lease)


class Election:
    """One candidate for one Lease."""

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        name: str,
        identity: str,
        *,
        on_lost: Callable[[str], None],
        metrics: Metrics,
        settings: ElectionSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare a candidate; ``run`` makes it one.

        Args:
            connection: Where the Lease is.
            namespace: Of the Lease.
            name: Of the Lease.
            identity: Of this pod: its name and uid. The same after a restart of the container, which then leads again
                at once: the process before it is gone.
            on_lost: Called with the reason as soon as leadership is lost; should end the process at once.
            metrics: Gets ``leader`` and ``leader_transitions``.
            settings: Times.
            clock: Monotonic seconds.
        """
        self._connection, self._path, self._collection = connection, LEASE.path(namespace, name), LEASE.path(namespace)
        self._name, self.identity, self._on_lost, self._metrics = name, identity, on_lost, metrics
        self._settings, self._clock = settings or ElectionSettings(), clock
        self._elected = asyncio.Event()
        self._ended = False
        self._request_s = self._settings.request_s
        self._renewed_at = float("-inf")
        self._known: _Lease | None = None
        self._changed_at = clock()
        self.last_round = clock()
        """When the last try ended, whatever came of it; a watchdog sees from it that the election is alive."""

    @property
    def leading(self) -> bool:
        """Whether this process may write now; false at the renew deadline even if nothing noticed yet."""
        return self._elected.is_set() and not self._ended and self._clock() < self._deadline

    @property
    def holder(self) -> str:
        """Who leads, as far as we know; empty: nobody."""
        return (self._known.spec.holder_identity or "") if self._known is not None else ""

    async def wait_elected(self) -> None:
        """Return once this process leads."""
        await self._elected.wait()

    async def run(self) -> None:
        """Become leader, and stay it until cancelled.

        Raises:
            LostLeadership: after ``on_lost`` returned, if it did.
        """
        while True:
            if await self._try():
                break
            await asyncio.sleep(self._pause_s())
        self._elected.set()
        self._metrics.leader.set(1)
        self._metrics.leader_transitions.inc()
        _log.info("leading", lease=self._path, identity=self.identity)
        try:
            await self._hold()
        except LostLeadership as lost:
            self._end()
            _log.error("leadership lost", lease=self._path, reason=str(lost))
            self._on_lost(str(lost))
            raise

    async def release(self) -> None:
        """Let others lead at once; for a clean exit, after the last write. Failing to is no error."""
        held, lease = self._elected.is_set() and not self._ended, self._known
        self._end()
        if not held or lease is None:
            return
        spec = _Spec(lease_duration_seconds=1, lease_transitions=lease.spec.lease_transitions)
        try:
            await self._put(spec, lease.metadata.resource_version)
        except errors.ApiError as error:
            _log.warning("the lease could not be released; others wait until it ends", error=str(error))

    def _pause_s(self) -> float:
        """Until the next try to take the lease: sooner than usual if another's ends sooner."""
        retry_s = self._settings.retry_s * (0.8 + 0.4 * random.random())
        left_s = 0.0 if self._known is None else self._ends_at(self._known) - self._clock()
        return min(retry_s, left_s) if left_s > 0 else retry_s

    @property
    def _deadline(self) -> float:
        return self._renewed_at + self._settings.renew_deadline_s

    def _end(self) -> None:
        self._ended = True
        self._metrics.leader.set(0)

    async def _hold(self) -> None:
        """Renew every ``retry_s``; ends only by losing."""
        tried_at = self._clock()
        while True:
            # A try that took long leaves no time to waste before the next.
            pause_s = max(self._settings.retry_s / 10, tried_at + self._settings.retry_s - self._clock())
            await asyncio.sleep(min(pause_s, max(0.0, self._deadline - self._clock())))
            if self._clock() >= self._deadline:
                raise LostLeadership(f"not renewed for {self._clock() - self._renewed_at:.1f} s")
            tried_at = self._clock()
            if not await self._try() and self.holder != self.identity and self._known is not None:
                raise LostLeadership(f"the lease is held by {self.holder or 'nobody'!r}")

    async def _try(self) -> bool:
        """Take or renew the Lease, once; False if that did not succeed."""
        longest_s, started = self._request_s * 2, self._clock()
        if self._elected.is_set():
            longest_s = min(longest_s, max(0.0, self._deadline - self._clock()))
        try:
            async with asyncio.timeout(longest_s):
                took = await self._take()
            self._request_s = self._settings.request_s
            return took
        except errors.Conflict:
            # Somebody else wrote: who, the next look tells.
            await self._look()
            return False
        except (errors.ApiError, TimeoutError) as error:
            if self._clock() - started >= self._request_s:
                self._request_s = min(2 * self._request_s, self._settings.renew_deadline_s)
            _log.warning("the lease could not be written or read", lease=self._path, error=str(error))
            return False
        finally:
            self.last_round = self._clock()

    async def _take(self) -> bool:
        lease = self._known if self._elected.is_set() else await self._read()
        if lease is None:
            return await self._create()
        mine = lease.spec.holder_identity == self.identity
        if not mine and lease.spec.holder_identity and not self._expired(lease):
            return False
        sent_at = self._clock()
        try:
            reply = await self._put(self._spec(lease, mine=mine), lease.metadata.resource_version)
        except errors.NotFound:
            # Somebody deleted it.
            self._known = None
            return await self._create()
        self._took(reply, sent_at)
        return True

    async def _look(self) -> None:
        try:
            await self._read()
        except errors.ApiError as error:
            _log.warning("the lease could not be read", lease=self._path, error=str(error))

    async def _read(self) -> _Lease | None:
        call = Call("get", self._path, LEASE.plural, timeout_s=self._request_s)
        try:
            lease = _LEASE.decode(await self._connection.request(call))
        except errors.NotFound:
            self._known = None
            return None
        if self._known is None or lease.metadata.resource_version != self._known.metadata.resource_version:
            self._known, self._changed_at = lease, self._clock()
        return lease

    def _expired(self, lease: _Lease) -> bool:
        return self._clock() >= self._ends_at(lease)

    def _ends_at(self, lease: _Lease) -> float:
        return self._changed_at + float(lease.spec.lease_duration_seconds or self._settings.lease_s)

    async def _create(self) -> bool:
        sent_at = self._clock()
        body = self._body(self._spec(None, mine=False), "")
        call = Call("create", self._collection, LEASE.plural, body=body, timeout_s=self._request_s)
        self._took(await self._connection.request(call), sent_at)
        return True

    async def _put(self, spec: _Spec, resource_version: str) -> bytes:
        body = self._body(spec, resource_version)
        call = Call("update", self._path, LEASE.plural, body=body, timeout_s=self._request_s)
        return await self._connection.request(call)

    def _took(self, reply: bytes, sent_at: float) -> None:
        self._known = _LEASE.decode(reply)
        self._changed_at, self._renewed_at = self._clock(), sent_at

    def _spec(self, lease: _Lease | None, *, mine: bool) -> _Spec:
        now = micro_now()
        before = _Spec() if lease is None else lease.spec
        transitions = (before.lease_transitions or 0) + (0 if mine or lease is None else 1)
        return _Spec(
            holder_identity=self.identity,
            lease_duration_seconds=max(1, round(self._settings.lease_s)),
            acquire_time=before.acquire_time if mine else now,
            renew_time=now,
            lease_transitions=transitions,
        )

    def _body(self, spec: _Spec, resource_version: str) -> dict[str, Any]:
        metadata = {"name": self._name} | ({"resourceVersion": resource_version} if resource_version else {})
        return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}
