"""All that happens to runs and their children, as a watcher of its own sees it: every event, none left out.

What a test polls it may miss; what the API server did is in its watches. A watch that ends is taken up where it ended,
and one that cannot be (410) fails the test: a history with a hole proves nothing. Before anybody asks there is none:
where the watch cache of a kind is new, a list may be older than all that its watch knows. A test that itself replaces a
kind's CRD, whose watch cache begins anew then, says so and is told the state after the hole.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from echorl_operator.kube.resources import CHILDREN, EVENT, POD, RUN, Resource
from echorl_testing.cluster.api import ApiError
from echorl_testing.kube.async_api import AsyncApi

Object = dict[str, Any]
_WATCHED = (RUN, POD, EVENT, *CHILDREN)
_LINE_LIMIT = 8 * 2**20
_ANEW_S = 120.0
BEGINNING_ANEW = frozenset({404, 429, 503})
"""What a kind answers while the API server takes over its changed CRD."""


class _Hole(Exception):
    """A watch that cannot be taken up where it ended."""


@dataclass(frozen=True, slots=True)
class Change:
    """One event of one object."""

    version: int
    """Resource version: the order of all changes, of all kinds."""
    type: str
    """ADDED, MODIFIED or DELETED."""
    kind: str
    namespace: str
    name: str
    uid: str
    raw: bytes
    """The object as JSON; empty for kinds of which only names and uids are kept."""

    @property
    def object(self) -> Object:
        """The object as it was; of a deleted one as it was last."""
        found: Object = msgspec.json.decode(self.raw)
        return found


class History:
    """Watches runs, pods, their other children and events in all namespaces while entered."""

    def __init__(self, api: AsyncApi) -> None:
        self.api = api
        self._changes: dict[str, list[Change]] = defaultdict(list)
        self._living: dict[str, dict[tuple[str, str], Object]] = defaultdict(dict)
        self._listeners: dict[str, list[Callable[[Change, Object], None]]] = defaultdict(list)
        self._waiting: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._tasks: list[asyncio.Task[None]] = []
        self._holes: set[Resource] = set()
        self._asked = False

    async def __aenter__(self) -> Self:
        for resource in _WATCHED:
            follow = self._follow(resource, await self._listed(resource))
            self._tasks.append(asyncio.create_task(follow, name=f"history of {resource.plural}"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.check()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self) -> None:
        """Fail if a watch has ended."""
        for task in self._tasks:
            if task.done():
                task.result()
                raise AssertionError(f"{task.get_name()} ended")

    def expect_hole(self, resource: Resource) -> None:
        """Let the watch of a kind begin anew where it cannot be taken up: its CRD is about to be replaced."""
        self._holes.add(resource)

    def changes(self, namespace: str, kind: str | None = None) -> list[Change]:
        """What happened in a namespace so far, in order."""
        found = [one for one in self._changes[namespace] if kind in (None, one.kind)]
        return sorted(found, key=lambda one: one.version)

    def living(self, namespace: str, kind: str) -> list[Object]:
        """Objects that are there now, by name."""
        found = self._living[namespace]
        return [found[key] for key in sorted(found) if key[0] == kind]

    def get(self, namespace: str, kind: str, name: str) -> Object | None:
        """One object as it is now; None if there is none."""
        return self._living[namespace].get((kind, name))

    def listen(self, namespace: str, listener: Callable[[Change, Object], None]) -> None:
        """Call ``listener`` at every change of a namespace, after what is there already."""
        self._asked = True
        for (kind, _), found in list(self._living[namespace].items()):
            listener(_change(kind, "ADDED", found, raw=b""), found)
        self._listeners[namespace].append(listener)

    async def until(self, namespace: str, what: str, question: Callable[[], Any], seconds: float) -> None:
        """Return once ``question`` is true; asked at every change of the namespace, and a few times a second.

        Raises:
            AssertionError: it is not within ``seconds``.
        """
        self._asked = True
        changed = asyncio.Event()
        self._waiting[namespace].add(changed)
        try:
            async with asyncio.timeout(seconds):
                while not question():
                    self.check()
                    changed.clear()
                    try:
                        async with asyncio.timeout(0.25):
                            await changed.wait()
                    except TimeoutError:
                        continue
        except TimeoutError:
            raise AssertionError(f"not within {seconds:.0f} s: {what}") from None
        finally:
            self._waiting[namespace].discard(changed)

    async def _follow(self, resource: Resource, version: str) -> None:
        while True:
            try:
                version = await self._watch(resource, version)
            except _Hole as hole:
                if self._asked and resource not in self._holes:
                    raise AssertionError(f"the history of {resource.plural} has a hole: {hole}") from None
                version = await self._listed(resource)

    async def _watch(self, resource: Resource, version: str) -> str:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=None)
        query = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version, "timeoutSeconds": "3000"}
        async with self.api.session.get(
            resource.path(None), params=query, timeout=timeout, read_bufsize=_LINE_LIMIT
        ) as reply:
            if reply.status != 200:
                raise _Hole(f"watch answered {reply.status}")
            async for line in reply.content:
                event = msgspec.json.decode(line)
                found: Object = event["object"]
                if event["type"] == "ERROR":
                    raise _Hole(str(found))
                if event["type"] != "BOOKMARK":
                    self._take(resource, event["type"], found)
                version = found["metadata"]["resourceVersion"]
        return version

    async def _listed(self, resource: Resource) -> str:
        """As ``_list``, once the API server answers."""
        async with asyncio.timeout(_ANEW_S):
            while True:
                try:
                    return await self._list(resource)
                except ApiError as error:
                    if error.code not in BEGINNING_ANEW:
                        raise
                    await asyncio.sleep(0.1)

    async def _list(self, resource: Resource) -> str:
        """Take what is there as it is now, as changes of what was known. Returns the list's resource version."""
        listed = await self.api.get(resource.path(None))
        gone = {
            (namespace, key[1]): found
            for namespace, living in self._living.items()
            for key, found in living.items()
            if key[0] == resource.kind
        }
        for item in listed["items"]:
            known = gone.pop((item["metadata"]["namespace"], item["metadata"]["name"]), None)
            if known is None or known["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
                found = {"kind": resource.kind, "apiVersion": resource.api_version, **item}
                self._take(resource, "MODIFIED" if known else "ADDED", found)
        for found in gone.values():
            self._take(resource, "DELETED", found)
        version: str = listed["metadata"]["resourceVersion"]
        return version

    def _take(self, resource: Resource, kind: str, found: Object) -> None:
        found["metadata"].pop("managedFields", None)
        raw = msgspec.json.encode(found) if resource in (RUN, POD) else b""
        change = _change(resource.kind, kind, found, raw=raw)
        self._changes[change.namespace].append(change)
        key = (change.kind, change.name)
        if kind == "DELETED":
            self._living[change.namespace].pop(key, None)
        else:
            self._living[change.namespace][key] = found
        for listener in self._listeners[change.namespace]:
            listener(change, found)
        for waiting in self._waiting[change.namespace]:
            waiting.set()


def _change(resource_kind: str, kind: str, found: Object, *, raw: bytes) -> Change:
    metadata = found["metadata"]
    version = int(metadata["resourceVersion"])
    return Change(version, kind, resource_kind, metadata["namespace"], metadata["name"], metadata["uid"], raw)
