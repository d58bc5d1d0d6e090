"""One run in a namespace of its own, with an operator behind a fault proxy: what fault scenarios are written in.

A ``Field`` is a real control plane on which many such lives go on at once; what they share is the history.
"""

import asyncio
import copy
import itertools
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from echorl_core.termination_message import message_of_end
from echorl_operator import names
from echorl_operator.kube.lists import StreamSettings
from echorl_operator.process import Operator
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.credentials import Connection
from echorl_testing.kube.async_api import AsyncApi
from echorl_testing.kube.fault_proxy import FaultProxy, Upstream
from echorl_testing.kube.watch_history import History, Object
from echorl_testing.operator.gang_oracle import attempt_of, attempts_admitted, gang_problems, is_admitted, made_twice
from echorl_testing.operator.operator_world import SPEC, operating
from echorl_testing.operator.played_cluster import PlayedCluster, played

AGENT = "echorl-operator"
PATIENCE_S = 240.0
"""For what is not timed: the machine may be busy with other lives."""
COMPRESSED = StreamSettings(watch_s=6.0, silence_s=2.0)
"""A watch that says nothing is given up after 8 s rather than 40."""
_numbers = itertools.count(1)
_KINDS = (
    "StatefulSet",
    "Deployment",
    "ControllerRevision",
    "Service",
    "ConfigMap",
    "PersistentVolumeClaim",
    "ServiceAccount",
    "NetworkPolicy",
    "Secret",
)


class Life:
    """One run, ``one``, and all that is about it."""

    def __init__(self, field: "Field", namespace: str, cluster: PlayedCluster, proxy: FaultProxy) -> None:
        self.field, self.namespace, self.cluster, self.proxy = field, namespace, cluster, proxy
        self.history, self.api = field.history, field.history.api
        self.runs = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{namespace}/{names.PLURAL}"
        self.kubeconfig = proxy.write_kubeconfig(field.folder / f"{namespace}.kubeconfig")

    async def create(self, **changes: Any) -> None:
        """Make the run; ``changes`` replace blocks of its spec."""
        document = {
            "apiVersion": f"{names.GROUP}/{names.VERSION}",
            "kind": names.KIND,
            "metadata": {"name": "one"},
            "spec": copy.deepcopy(SPEC) | changes,
        }
        await self.api.create(self.runs, document)

    async def edit(self, **changes: Any) -> None:
        """Change the run's spec, as a merge patch."""
        await self.api.patch(f"{self.runs}/one", {"spec": changes})

    def status(self) -> dict[str, Any]:
        """The run's, now."""
        status: dict[str, Any] = (self.history.get(self.namespace, names.KIND, "one") or {}).get("status", {})
        return status

    def condition(self, kind: str) -> dict[str, Any]:
        """One of its conditions; empty if there is none."""
        found = (one for one in self.status().get("conditions", []) if one["type"] == kind)
        return next(found, {})

    def pods(self, role: names.PodRole) -> list[Object]:
        """Pods of a role, by name."""
        return [
            pod
            for pod in self.history.living(self.namespace, "Pod")
            if (pod["metadata"].get("labels") or {}).get(names.LABEL_ROLE) == role
        ]

    def notes(self) -> list[str]:
        """Reasons and words of all events on the run."""
        events = self.history.living(self.namespace, "Event")
        return [f"{one['reason']}: {one.get('note', '')}" for one in events if one["regarding"]["kind"] == names.KIND]

    async def note(self, beginning: str) -> str:
        """The first of these that begins so, once it is there: events come by a watch of their own."""

        def found() -> str:
            return next((one for one in self.notes() if one.startswith(beginning)), "")

        await self.until(f"an event that begins with {beginning!r}", found)
        return found()

    def writes(self) -> int:
        """Of all its operators so far, tries included."""
        return len(self.proxy.writes_by(AGENT))

    async def until(self, what: str, question: Any, seconds: float = PATIENCE_S) -> None:
        """Return once ``question`` is true; an AssertionError tells where the run stands."""
        try:
            await self.history.until(self.namespace, what, question, seconds)
        except AssertionError as error:
            self.cluster.check()
            pods = [_told(pod) for pod in self.history.living(self.namespace, "Pod")]
            raise AssertionError("\n".join([str(error), *self._stands(), *pods, *self.notes()])) from None

    def _stands(self) -> list[str]:
        """Where the run stands, for messages."""
        status = self.status()
        problems = [
            one for one in status.get("conditions", []) if one["type"] in ("Blocked", "NodeLost", "InvalidSpec")
        ]
        entries = [
            f"{one['phase']} {one['attempt']} {one['reason']} {one['since']}" for one in status.get("timeline", [])
        ]
        return [f"{status.get('phase')}: {status.get('message')}", f"{status.get('control')}", f"{problems}", *entries]

    async def running(self, attempt: int, seconds: float = PATIENCE_S) -> None:
        """The attempt runs, and its whole gang was let through."""

        def reached() -> bool:
            status, gang = self.status(), self.pods(names.PodRole.TRAINER)
            at_work = [pod for pod in gang if pod.get("status", {}).get("phase") == "Running"]
            through = [pod for pod in at_work if is_admitted(pod) and "deletionTimestamp" not in pod["metadata"]]
            return (status.get("phase"), status.get("attempt"), len(through)) == ("Running", attempt, 2)

        await self.until(f"attempt {attempt} runs", reached, seconds)

    async def lose_a_rank(self, attempt: int) -> None:
        """A trainer pod of this attempt crashes."""
        await self.cluster.end("one-trainer-1", 1, message_of_end("trainer", 1, "lost", attempt=attempt))

    async def finish(self) -> None:
        """The orchestrator says that all steps are done; the run ends and lets go of its GPUs."""
        await self.cluster.succeed()

        def free() -> bool:
            roles = (names.PodRole.TRAINER, names.PodRole.INFERENCE)
            return self.status().get("phase") == "Succeeded" and not any(self.pods(role) for role in roles)

        await self.until("the run has succeeded and its GPUs are free", free)
        await self.until("status is settled", lambda: self.status()["inference"]["replicas"] == 0)

    def end(self) -> dict[str, Any]:
        """Children that are left, and what status says: names and numbers, not uids and times."""
        found: dict[str, Any] = {}
        for kind in _KINDS:
            objects = self.history.living(self.namespace, kind)
            found[kind] = [one["metadata"]["name"] for one in objects if is_ours(one)]
        sets = [*self.history.living(self.namespace, "StatefulSet"), *self.history.living(self.namespace, "Deployment")]
        status = self.status()
        return {
            **found,
            "replicas": [one["spec"]["replicas"] for one in sets],
            **{key: status.get(key) for key in ("phase", "attempt", "restarts", "restartsByRole", "step", "revision")},
            "timeline": [(entry["phase"], entry["attempt"]) for entry in status.get("timeline", [])],
        }

    def problems(self) -> list[str]:
        """What its history shows that must never be."""
        changes = self.history.changes(self.namespace)
        return [*gang_problems(changes), *made_twice(changes)]

    def admitted(self) -> list[int]:
        """Attempts of trainer pods, in the order in which they were let through."""
        return attempts_admitted(self.history.changes(self.namespace))

    @asynccontextmanager
    async def operated(self, streams: StreamSettings | None = None) -> AsyncIterator[Operator]:
        """An operator that sees the API server through the proxy. ``streams``: its own by default."""
        async with operating(self.kubeconfig, self.namespace, streams=streams) as operator:
            yield operator


class Field:
    """A control plane on which many lives go on at once. Use as a context manager."""

    def __init__(self, api: Api, connection: Connection, folder: Path) -> None:
        self.sync_api, self.connection, self.folder = api, connection, folder
        self._stack = AsyncExitStack()
        self._made: list[str] = []
        self._token = secrets.token_hex(2)

    async def __aenter__(self) -> Self:
        api = await self._stack.enter_async_context(AsyncApi(self.connection))
        self.history = await self._stack.enter_async_context(History(api))
        self.upstream = await Upstream.from_kubeconfig(self.connection.kubeconfig)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._made:
            await self.history.api.delete(f"/api/v1/namespaces/{name}")
        await self._stack.aclose()

    async def namespace(self) -> str:
        """A new one that accepts pods; deleted in the end."""
        name = f"life-{self._token}-{next(_numbers)}"
        await self.history.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self._made.append(name)
        account = lambda: self.history.get(name, "ServiceAccount", "default")  # noqa: E731
        await self.history.until(name, f"namespace {name} accepts pods", account, PATIENCE_S)
        return name

    @asynccontextmanager
    async def life(self) -> AsyncIterator[Life]:
        """A namespace with played pods and a proxy, without an operator yet."""
        namespace = await self.namespace()
        async with played(self.sync_api, self.history, namespace) as cluster, FaultProxy(self.upstream) as proxy:
            yield Life(self, namespace, cluster, proxy)


def _told(pod: Object) -> str:
    """A pod in a few words, for messages."""
    metadata, waits = pod["metadata"], "" if is_admitted(pod) else ", gated"
    ending = ", ending" if "deletionTimestamp" in metadata else ""
    phase = pod.get("status", {}).get("phase")
    return f"{metadata['name']} of attempt {attempt_of(pod)}: {phase}{waits}{ending}"


def is_ours(found: Object) -> bool:
    """Controllers copy labels of ours to what they make."""
    labels = found["metadata"].get("labels") or {}
    return labels.get(names.LABEL_MANAGED_BY) == names.MANAGED_BY and all(
        owner["kind"] == names.KIND for owner in found["metadata"].get("ownerReferences", [])
    )


async def ended(task: "asyncio.Task[Any]") -> None:
    """Cancel a task, and raise what it failed with before."""
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return
