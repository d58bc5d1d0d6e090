"""What can be seen from outside, by watches of their own: children that are there, pods that are ready."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from echorl_operator.kube.connection import Connection
from echorl_operator.kube.lists import Stream
from echorl_operator.kube.resources import CHILDREN, POD
from echorl_operator.kube.store import Store
from echorl_operator.metrics import Metrics
from echorl_operator.names import PodRole
from echorl_operator.observed import decode
from echorl_operator.observed.records import ChildRecord, Kind, PodRecord
from echorl_operator.observed.runs import RunKey

_REVISIONS = next(one for one in CHILDREN if one.kind == Kind.REVISION)


@dataclass
class Sightings:
    """Monotonic times at which things were first seen, by run."""

    orchestrators: dict[RunKey, float] = field(default_factory=dict)
    """The last child that is made."""
    revisions: dict[RunKey, list[float]] = field(default_factory=dict)
    """The first child that is made, and the first one after an edit."""
    ready: dict[str, float] = field(default_factory=dict)
    """Uids of pods that are ready."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    check: Callable[[], None] = lambda: None
    """Raises if there is no use in waiting any longer."""
    _known: set[str] = field(default_factory=set)

    def pod(self, body: bytes) -> PodRecord:
        """Take a look at a pod."""
        seen, now = decode.pod(body), time.monotonic()
        if seen.role is PodRole.ORCHESTRATOR:
            self.orchestrators.setdefault(RunKey(seen.meta.namespace, seen.meta.run), now)
        if seen.ready:
            self.ready.setdefault(seen.meta.uid, now)
        self.changed.set()
        return seen

    def revision(self, body: bytes) -> ChildRecord:
        """Take a look at a ControllerRevision."""
        seen = decode.child(Kind.SECRET, body)
        # A StatefulSet has some, too.
        if seen.meta.owner_uid == seen.meta.run_uid and seen.meta.uid not in self._known:
            self._known.add(seen.meta.uid)
            self.revisions.setdefault(RunKey(seen.meta.namespace, seen.meta.run), []).append(time.monotonic())
        self.changed.set()
        return seen

    async def until(self, what: str, question: Callable[[], bool], seconds: float) -> None:
        """Wait until something has been seen.

        Raises:
            TimeoutError: it has not.
            RuntimeError: the operator has ended.
        """
        deadline = time.monotonic() + seconds
        while not question():
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {seconds:.0f} s")
            self.changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), 1.0)


@asynccontextmanager
async def watching(connection: Connection) -> AsyncIterator[Sightings]:
    """Watch pods and ControllerRevisions of all runs."""
    seen = Sightings()
    common: dict[str, Any] = {"metrics": Metrics()}
    streams: list[Stream[Any]] = [
        Stream(connection, POD, None, store=Store(lambda _: None), project=seen.pod, **common),
        Stream(connection, _REVISIONS, None, store=Store(lambda _: None), project=seen.revision, **common),
    ]
    tasks = [asyncio.create_task(stream.run()) for stream in streams]
    try:
        for stream in streams:
            await stream.synced.wait()
        yield seen
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
