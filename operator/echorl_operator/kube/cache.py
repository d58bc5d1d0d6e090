"""All that is watched: runs, their pods and their other children, in one namespace, several, or all."""

import asyncio
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from echorl_operator import names
from echorl_operator.kube.connection import Connection
from echorl_operator.kube.lists import Stream, StreamSettings
from echorl_operator.kube.resources import CHILDREN, POD, RUN, Resource
from echorl_operator.kube.store import Store
from echorl_operator.metrics import Metrics
from echorl_operator.observed import decode
from echorl_operator.observed.records import ChildRecord, Kind, PodRecord
from echorl_operator.observed.runs import RunKey, RunRecord

AnyStream = Stream[PodRecord] | Stream[ChildRecord] | Stream[RunRecord]


DEPARTED_S = 180.0
"""How long a pod that is gone is remembered: a StatefulSet's controller replaces one that ended at once."""


_SANDBOXES = "sandboxes"
"""What their pods are called in metrics."""


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class _Head(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    metadata: _Meta = msgspec.field(default_factory=_Meta)


_HEAD = msgspec.json.Decoder(_Head)


class Cache:
    """Stores and the streams that fill them; what the writer did is in them before any watch tells."""

    def __init__(
        self,
        connection: Connection,
        namespaces: Sequence[str] | None,
        *,
        kinds: Collection[Kind] = frozenset(Kind),
        on_change: Callable[[RunKey], None],
        on_sandbox: Callable[[RunKey], None] | None = None,
        metrics: Metrics,
        settings: StreamSettings | None = None,
        on_failure: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """Prepare streams; ``run`` starts them.

        Args:
            connection: Where to ask.
            namespaces: Those to watch, at least one; None: all, which needs rights on the whole cluster.
            kinds: Children to watch besides pods; the stores of others stay empty but for our own writes.
            on_change: Gets the key of every run of which something changed.
            on_sandbox: Gets that of every run of whose sandboxes' pods something changed, which is often; None: these
                are not watched.
            metrics: Counts; gets two gauges more: age of each stream and number of records.
            settings: Time-outs and waits of each stream.
            on_failure: Gets whatever ended a list or watch.

        Raises:
            ValueError: no namespace is named.
        """
        if namespaces is not None and not namespaces:
            raise ValueError("namespaces: found none, accepted is one or more, or None for all")
        self.runs: Store[RunRecord] = Store(on_change)
        self.pods: Store[PodRecord] = Store(on_change, remember_s=DEPARTED_S)
        self.sandboxes: Store[PodRecord] = Store(on_sandbox or on_change)
        self.children: Mapping[Kind, Store[ChildRecord]] = {kind: Store(on_change) for kind in Kind}
        self._streams: list[AnyStream] = []
        common: dict[str, Any] = {"metrics": metrics, "settings": settings, "on_failure": on_failure}
        for namespace in (None,) if namespaces is None else tuple(dict.fromkeys(namespaces)):
            runs = Stream(connection, RUN, namespace, store=self.runs, project=decode.run, selector=None, **common)
            pods = Stream(connection, POD, namespace, store=self.pods, project=decode.pod, **common)
            self._streams += [runs, pods]
            if on_sandbox is not None:
                chosen: dict[str, Any] = {"selector": names.SANDBOXES, **common}
                self._streams.append(
                    Stream(connection, POD, namespace, store=self.sandboxes, project=decode.pod, **chosen)
                )
            for resource in (resource for resource in CHILDREN if resource.kind in kinds):
                self._streams.append(self._children_stream(connection, resource, namespace, common))
        quiet_s = (settings or StreamSettings()).longest_quiet_s
        heard = f"Since a stream heard anything; up to {quiet_s:.0f} s where a kind of object does not change."
        metrics.at_scrape("watch_age_seconds", heard, ("resource", "namespace"), self._ages)
        metrics.at_scrape("cached_objects", "Records held.", ("resource",), self._sizes)

    @property
    def streams(self) -> Sequence[AnyStream]:
        """All streams."""
        return self._streams

    @property
    def synced(self) -> bool:
        """Whether every stream has listed once."""
        return all(stream.synced.is_set() for stream in self._streams)

    async def run(self) -> None:
        """Run all streams until cancelled."""
        async with asyncio.TaskGroup() as group:
            for stream in self._streams:
                group.create_task(stream.run(), name=f"watch {stream.name}")

    async def wait_synced(self, deadline_s: float) -> None:
        """Return once every stream has listed.

        Raises:
            TimeoutError: some have not within ``deadline_s``; the message names them.
        """
        try:
            async with asyncio.timeout(deadline_s):
                for stream in self._streams:
                    await stream.synced.wait()
        except TimeoutError as error:
            late = sorted({stream.resource.plural for stream in self._streams if not stream.synced.is_set()})
            raise TimeoutError(f"not listed after {deadline_s:.0f} s: {', '.join(late)}") from error

    def pods_of(self, run_uid: str) -> tuple[PodRecord, ...]:
        """Pods with this label, sorted by name."""
        return tuple(self.pods.of_run(run_uid))

    def sandboxes_of(self, run_uid: str) -> tuple[PodRecord, ...]:
        """Pods of the run's sandboxes, sorted by name."""
        return tuple(self.sandboxes.of_run(run_uid))

    def departed_of(self, run_uid: str) -> tuple[PodRecord, ...]:
        """Pods with this label that went in the last minutes, as they were seen last."""
        return tuple(self.pods.departed(run_uid))

    def children_of(self, run_uid: str) -> tuple[ChildRecord, ...]:
        """Other children, sorted by kind and name."""
        kinds = sorted(self.children)
        return tuple(child for kind in kinds for child in self.children[kind].of_run(run_uid))

    def observe_write(self, reply: bytes) -> None:
        """Take in the object that the server answered a write with; kinds that are not watched are ignored."""
        head = _HEAD.decode(reply)
        if (head.api_version, head.kind) == (RUN.api_version, RUN.kind):
            self.runs.put(decode.run(reply))
        elif (head.api_version, head.kind) == (POD.api_version, POD.kind):
            self.pods.put(decode.pod(reply))
        elif head.kind in Kind.__members__.values():
            kind = Kind(head.kind)
            self.children[kind].put(decode.child(kind, reply))

    def observe_deletion(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        """Take in that the server has no such object any more."""
        store = self._store(resource)
        if store is not None:
            store.bury(namespace, name, uid)

    def _store(self, resource: Resource) -> Store[PodRecord] | Store[ChildRecord] | Store[RunRecord] | None:
        if resource == POD:
            return self.pods
        if resource == RUN:
            return self.runs
        return self.children[Kind(resource.kind)] if resource in CHILDREN else None

    def _children_stream(
        self, connection: Connection, resource: Resource, namespace: str | None, common: dict[str, Any]
    ) -> Stream[ChildRecord]:
        kind = Kind(resource.kind)
        project = functools.partial(decode.child, kind)
        return Stream(connection, resource, namespace, store=self.children[kind], project=project, **common)

    def _ages(self) -> Iterator[tuple[tuple[str, str], float]]:
        for stream in self._streams:
            kind = _SANDBOXES if stream.store is self.sandboxes else stream.resource.plural
            yield (kind, stream.namespace or ""), stream.age()

    def _sizes(self) -> Iterator[tuple[tuple[str], float]]:
        yield (RUN.plural,), len(self.runs)
        yield (POD.plural,), len(self.pods)
        yield (_SANDBOXES,), len(self.sandboxes)
        for resource in CHILDREN:
            yield (resource.plural,), len(self.children[Kind(resource.kind)])
