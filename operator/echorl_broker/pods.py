"""Sandbox pods and what they belong to, read from and written to the API server; nothing is remembered."""

import asyncio
import math
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from echorl_broker import labels
from echorl_operator import names
from echorl_operator.kube import errors
from echorl_operator.kube.connection import JSON, Call, Connection
from echorl_operator.kube.resources import POD, RUN, Resource
from echorl_operator.observed import decode
from echorl_operator.observed.records import Meta, PodRecord
from echorl_operator.observed.runs import RunRecord

_METADATA = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PAGE = "500"
_AT_ONCE = 32
"""Writes of one kind under way; those that destroy never wait for those that create."""
_SILENCE_S = 10.0
_STRICT = {"fieldManager": "echorl-broker", "fieldValidation": "Strict"}
"""Of writes. A field that is not known may be one that isolates: it is refused, not dropped."""


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletion_timestamp: str | None = None

    @property
    def lives(self) -> bool:
        return self.deletion_timestamp is None


class _Object(msgspec.Struct):
    metadata: _Meta


class _ListMeta(msgspec.Struct):
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


_OBJECT = msgspec.json.Decoder(_Object)
_PAGES = msgspec.json.Decoder(_Page)


@dataclass(frozen=True)
class Head:
    """Which pod of a sandbox."""

    name: str
    uid: str
    key: str


@dataclass(frozen=True)
class SandboxPod:
    """One pod of a sandbox, or one that has its name."""

    record: PodRecord
    key: str
    """Empty: nobody has it yet, or it is none of ours."""
    nonce: str
    orchestrator_uid: str
    gateway: bool
    ttl_s: float
    made: bool = True
    """Whether its pod is there; somebody else may be to make it."""
    warm: str = ""
    """By which shape it was made that nobody has yet; empty: somebody has it."""
    claimed_at: float = 0.0
    """When a warm one became somebody's; 0: it was made for who has it."""
    followed: Resource = POD
    """Where its changes are seen."""
    unclaimed: Meta | None = None
    """Its pod, as long as that does not say whose it is, though it is somebody's."""
    token_of: str = ""
    """Name that its token is derived from; empty: its own."""


def sandbox_pod(body: bytes) -> SandboxPod:
    """A pod from its JSON.

    Raises:
        msgspec.MsgspecError: it is no pod.
    """
    meta = _OBJECT.decode(body).metadata
    ours = meta.labels.get(names.LABEL_MANAGED_BY) == names.SANDBOXES_MANAGED_BY
    ttl = meta.annotations.get(labels.TTL, "")
    return SandboxPod(
        record=decode.pod(body),
        key=meta.annotations.get(labels.KEY, "") if ours else "",
        nonce=meta.annotations.get(labels.NONCE, ""),
        orchestrator_uid=meta.labels.get(labels.ORCHESTRATOR_UID, ""),
        gateway=names.LABEL_GATEWAY in meta.labels,
        ttl_s=float(ttl) if ttl.isdecimal() else 0.0,
        warm="" if names.LABEL_CLAIM in meta.labels else meta.labels.get(names.LABEL_WARM, ""),
        claimed_at=float(meta.annotations.get(labels.CLAIMED_AT, "0")),
    )


class Cluster:
    """Calls of one API server."""

    _kind: ClassVar[Resource] = POD
    """What is made and deleted for a sandbox."""
    _propagation: ClassVar[str] = "Background"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._creating, self._deleting = asyncio.Semaphore(_AT_ONCE), asyncio.Semaphore(_AT_ONCE)

    async def run(self, namespace: str, name: str) -> RunRecord | None:
        """A run; None if there is none. Raises errors.ApiError, as all calls here."""
        body = await self._found(Call("get", RUN.path(namespace, name), RUN.plural))
        return None if body is None else decode.run(body)

    async def orchestrator(self, run: RunRecord) -> PodRecord | None:
        """The pod of a run's orchestrator, if it is this run's and not on its way out."""
        key = run.key
        body = await self._found(Call("get", POD.path(key.namespace, names.orchestrator(key.name)), POD.plural))
        pod = None if body is None else decode.pod(body)
        is_its_own = pod is not None and pod.meta.run_uid == run.uid and pod.meta.owner_uid == run.uid
        return pod if pod is not None and is_its_own and pod.meta.deleted_at is None and not pod.ended else None

    async def sandbox(self, namespace: str, name: str) -> SandboxPod | None:
        """The pod of that name; None if there is none."""
        body = await self._found(Call("get", self._kind.path(namespace, name), self._kind.plural))
        return None if body is None else self._read(body)

    async def living(self, namespace: str, run_uid: str) -> list[Head]:
        """A run's sandboxes that are not being deleted, by key."""
        return sorted(await self._heads(self._kind, namespace, labels.of_run(run_uid)), key=lambda head: head.key)

    async def warm(self, namespace: str, run_uid: str) -> list[SandboxPod]:
        """A run's sandboxes that nobody has yet and that are not being deleted, the oldest first."""
        pods = [sandbox_pod(item) for item in await self._list(POD, namespace, labels.warm_of(run_uid), JSON)]
        living = (pod for pod in pods if pod.record.meta.deleted_at is None)
        return sorted(living, key=lambda pod: (pod.record.meta.created_at, pod.record.meta.name))

    async def claimed(self, namespace: str, run_uid: str, key: str) -> list[SandboxPod]:
        """Those that were warm until this key was asked for, in that order; one, unless two calls asked at once."""
        pods = [sandbox_pod(item) for item in await self._list(POD, namespace, labels.claimed_of(run_uid, key), JSON)]
        return sorted((pod for pod in pods if pod.key == key), key=lambda pod: pod.claimed_at)

    async def claim(self, pod: Meta, change: dict[str, Any]) -> bool:
        """Make a warm one somebody's; False where somebody was faster, or it is gone."""
        return await self._patch(POD, pod, change)

    async def sandboxes(self, namespace: str | None) -> list[SandboxPod]:
        """All that are runs' own in a namespace, or (None) in all: none whose owner is another object of theirs."""
        pods = [self._read(item) for item in await self._list(self._kind, namespace, names.SANDBOXES, JSON)]
        return [pod for pod in pods if pod.record.meta.owner_uid in {"", pod.record.meta.run_uid}]

    async def pools(self, namespace: str | None) -> list[SandboxPod]:
        """Pools of runs in a namespace, or (None) in all, as one to reap each; none where the broker makes the pods."""
        return []

    async def create(self, body: dict[str, Any]) -> None:
        """Make a pod. Raises errors.AlreadyExists where its name is taken."""
        await self._create(self._kind, body)

    async def delete(self, namespace: str, name: str, uid: str) -> bool:
        """Delete exactly this one; False where it is gone."""
        return await self._delete(self._kind, namespace, name, uid)

    async def _create(self, kind: Resource, body: dict[str, Any]) -> None:
        async with self._creating:
            await self._connection.request(
                Call("create", kind.path(body["metadata"]["namespace"]), kind.plural, _STRICT, body)
            )

    async def _patch(self, kind: Resource, meta: Meta, change: dict[str, Any]) -> bool:
        """Change exactly this one; False where it is gone, or not what it was."""
        try:
            path = kind.path(meta.namespace, meta.name)
            await self._connection.request(Call("patch", path, kind.plural, _STRICT, body=change))
        except (errors.NotFound, errors.Conflict):
            return False
        return True

    async def _delete(self, kind: Resource, namespace: str, name: str, uid: str) -> bool:
        body = {"preconditions": {"uid": uid}, "propagationPolicy": self._propagation}
        call = Call("delete", kind.path(namespace, name), kind.plural, body=body)
        try:
            async with self._deleting:
                await self._connection.request(call)
        except errors.NotFound:
            return False
        except errors.Conflict as error:
            if not error.uid_differs:
                raise
            return False
        return True

    async def changed(self, pod: SandboxPod, timeout_s: float) -> None:
        """Return when a pod has changed since it was read, or after a time."""
        meta, kind = pod.record.meta, pod.followed
        query = {
            "watch": "1",
            "fieldSelector": f"metadata.name={meta.name}",
            "resourceVersion": meta.resource_version,
            "timeoutSeconds": str(max(1, math.ceil(timeout_s))),
        }
        try:
            async with asyncio.timeout(timeout_s):
                path = kind.path(meta.namespace)
                call = Call("watch", path, kind.plural, query, timeout_s=timeout_s + _SILENCE_S)
                async with aclosing(self._connection.watch(call)) as lines:
                    async for _ in lines:
                        return
        except TimeoutError:
            return
        except errors.ApiError:
            # Who asks reads it anew, and finds out what is wrong.
            await asyncio.sleep(min(1.0, timeout_s))

    async def _heads(self, kind: Resource, namespace: str, selector: str) -> list[Head]:
        metas = [_OBJECT.decode(item).metadata for item in await self._list(kind, namespace, selector, _METADATA)]
        return [Head(meta.name, meta.uid, meta.annotations.get(labels.KEY, "")) for meta in metas if meta.lives]

    def _read(self, body: bytes) -> SandboxPod:
        return sandbox_pod(body)

    async def _found(self, call: Call) -> bytes | None:
        try:
            return await self._connection.request(call)
        except errors.NotFound:
            return None

    async def _list(self, kind: Resource, namespace: str | None, selector: str, accept: str) -> Sequence[bytes]:
        items: list[bytes] = []
        query = {"labelSelector": selector, "limit": _PAGE}
        while True:
            call = Call("list", kind.path(namespace), kind.plural, query, accept=accept)
            page = _PAGES.decode(await self._connection.request(call))
            items += [bytes(item) for item in page.items or ()]
            if not page.metadata.continue_:
                return items
            query["continue"] = page.metadata.continue_
