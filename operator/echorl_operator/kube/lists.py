"""Own list and watch of one kind: keeps a store up to date through every fault, and says how old its news are."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Generic, Never

import msgspec
import structlog

from echorl_operator import names
from echorl_operator.kube import errors
from echorl_operator.kube.backoff import Backoff
from echorl_operator.kube.connection import JSON, Call, Connection
from echorl_operator.kube.resources import Resource
from echorl_operator.kube.store import R, Store, version_number
from echorl_operator.metrics import Metrics

OURS: Final = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"

_log = structlog.get_logger()


@dataclass(frozen=True)
class StreamSettings:
    """How a stream talks to the server. Seconds unless said otherwise."""

    page: int = 500
    """Objects a list request asks for."""
    watch_s: float = 30.0
    """How long the server keeps one watch open. It sends a bookmark 2 s before the end if it knows anything newer."""
    doubtful: int = 3
    """So many watches without an event or bookmark, and a list tells whether they can be trusted. Where a kind never
    changes an API server may have nothing to tell for hours."""
    silence_s: float = 10.0
    """So much longer than ``watch_s`` without a byte, and the connection counts as dead."""
    first_wait_s: float = 0.1
    longest_wait_s: float = 8.0
    """After failures; the shortest and the longest wait before the next list."""
    steady_s: float = 5.0
    """A watch that lived so long, or brought news, ends a series of failures."""

    @property
    def doubtful_s(self) -> float:
        """Without an event or bookmark for so long no new watch begins: a list comes first."""
        return self.doubtful * self.watch_s + self.silence_s

    @property
    def longest_quiet_s(self) -> float:
        """How long nothing may be heard of a stream at which nothing is wrong.

        The last watch began a moment before ``doubtful_s``, and ended as late as the connection allows.
        """
        return self.doubtful_s + self.watch_s + self.silence_s


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Bare(msgspec.Struct):
    metadata: _Meta


class _Code(msgspec.Struct):
    code: int = 500


class _GoneMeta(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    namespace: str = ""
    resource_version: str = ""


class _GoneObject(msgspec.Struct):
    metadata: _GoneMeta


_PAGE = msgspec.json.Decoder(_Page)
_EVENT = msgspec.json.Decoder(_Event)
_BARE = msgspec.json.Decoder(_Bare)
_CODE = msgspec.json.Decoder(_Code)
_GONE = msgspec.json.Decoder(_GoneObject)


class Silent(Exception):
    """Watches came and went without an event or bookmark."""


class Stream(Generic[R]):
    """One kind in one namespace, or in all. ``run`` never ends by itself: every failure leads to a new list."""

    def __init__(
        self,
        connection: Connection,
        resource: Resource,
        namespace: str | None,
        *,
        store: Store[R],
        project: Callable[[bytes], R],
        metrics: Metrics,
        selector: str | None = OURS,
        settings: StreamSettings | None = None,
        on_failure: Callable[[Exception], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep ``store`` equal to what the server has.

        Args:
            connection: Where to ask.
            resource: What to ask for.
            namespace: Where; None: everywhere.
            store: May be shared by streams of the same kind in other namespaces.
            project: Makes a record of an object's JSON, as soon as it arrives.
            metrics: Counts events and lists.
            selector: Labels; None: all objects.
            settings: Time-outs and waits.
            on_failure: Gets whatever ended a list or watch, before the wait for the next.
            clock: Seconds that never go back.
        """
        self.resource, self.namespace, self.store = resource, namespace, store
        self._connection, self._project, self._metrics, self._clock = connection, project, metrics, clock
        self._selector, self._on_failure = selector, on_failure
        self._settings = settings or StreamSettings()
        self._backoff = Backoff(self._settings.first_wait_s, self._settings.longest_wait_s)
        self._version = ""
        self.synced = asyncio.Event()
        """Set once the first list is in the store."""
        self.last_heard = clock()
        """When the last event, bookmark or complete list came; the start, before the first."""

    @property
    def name(self) -> str:
        """The stream's name in messages and tasks."""
        return f"{self.resource.plural} in {self.namespace or 'all namespaces'}"

    def age(self, now: float | None = None) -> float:
        """Seconds since anything was heard."""
        return (self._clock() if now is None else now) - self.last_heard

    async def run(self) -> Never:
        """List, watch, and begin again after every failure, until cancelled."""
        reason = "start"
        while True:
            self._metrics.watch_relists.labels(self.resource.plural, reason).inc()
            try:
                await self._list()
                while True:
                    await self._watch()
            except Exception as error:
                # Whatever it was, a fresh list mends it.
                reason = type(error).__name__
                self._tell(error)
            await asyncio.sleep(self._backoff.next_s())

    def _tell(self, error: Exception) -> None:
        expected = isinstance(error, errors.ApiError | Silent)
        where = {"resource": self.resource.plural, "namespace": self.namespace}
        tell = _log.info if isinstance(error, Silent) else _log.warning
        # An error of our own code needs its trace.
        tell("watch ended; listing anew", error=str(error), exc_info=not expected, **where)
        self._on_failure(error)

    async def _list(self) -> None:
        records: list[R] = []
        query = {"limit": str(self._settings.page), **self._selection()}
        while True:
            path = self.resource.path(self.namespace)
            reply = await self._connection.request(
                Call("list", path, self.resource.plural, query, accept=self._accept("PartialObjectMetadataList"))
            )
            page = _PAGE.decode(reply)
            records += [self._project(bytes(item)) for item in page.items or ()]
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        self._version = page.metadata.resource_version
        self.store.replace(self.namespace, records, version_number(self._version))
        self._heard()
        self.synced.set()

    async def _watch(self) -> None:
        started, heard, settings = self._clock(), self.last_heard, self._settings
        if self.age(started) > settings.doubtful_s:
            raise Silent(f"no event or bookmark for {self.age(started):.0f} s")
        async with aclosing(self._lines()) as lines:
            async for line in lines:
                self._handle(line)
        if self.last_heard > heard or self._clock() - started >= settings.steady_s:
            self._backoff.reset()
        else:
            # A server that ends every watch at once must not be asked in a tight loop.
            await asyncio.sleep(self._backoff.next_s())

    def _lines(self) -> AsyncGenerator[bytes, None]:
        # Apart from each other, so that the streams of one process do not all end at one moment.
        seconds = max(1, round(self._settings.watch_s * (0.9 + random.random() / 10)))
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
            **self._selection(),
        }
        path, plural = self.resource.path(self.namespace), self.resource.plural
        silence_s, accept = seconds + self._settings.silence_s, self._accept("PartialObjectMetadata")
        return self._connection.watch(Call("watch", path, plural, query, timeout_s=silence_s, accept=accept))

    def _handle(self, line: bytes) -> None:
        event = _EVENT.decode(line)
        body = bytes(event.object)
        self._metrics.watch_events.labels(self.resource.plural, event.type).inc()
        if event.type == "ERROR":
            raise errors.from_reply(f"watch {self.resource.plural}", _CODE.decode(body).code, body)
        if event.type == "BOOKMARK":
            self._version = _BARE.decode(body).metadata.resource_version
        elif event.type == "DELETED":
            self._version = self._deleted(body)
        elif event.type in ("ADDED", "MODIFIED"):
            self.store.put(self._project(body))
            self._version = _BARE.decode(body).metadata.resource_version
        else:
            raise ValueError(f"watch event type: found {event.type!r}")
        self._heard()
        self._backoff.reset()

    def _deleted(self, body: bytes) -> str:
        gone = _GONE.decode(body).metadata
        self.store.remove(gone.namespace, gone.name, gone.uid, version_number(gone.resource_version))
        return gone.resource_version

    def _heard(self) -> None:
        self.last_heard = self._clock()

    def _accept(self, metadata: str) -> str:
        return f"{JSON};as={metadata};g=meta.k8s.io;v=v1" if self.resource.metadata_only else JSON

    def _selection(self) -> dict[str, str]:
        return {} if self._selector is None else {"labelSelector": self._selector}
