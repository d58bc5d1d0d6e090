"""Every write to the API server. What it answers is in the cache before the call returns."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from echorl_operator import names
from echorl_operator.kube import errors
from echorl_operator.kube.cache import Cache
from echorl_operator.kube.connection import REQUEST_TIMEOUT_S, STRATEGIC_MERGE_PATCH, Call, Connection
from echorl_operator.kube.resources import POD, RUN, of_body, of_kind
from echorl_operator.observed import decode
from echorl_operator.observed.runs import RunKey, RunRecord


class NotLeading(Exception):
    """This process may not write (any more)."""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Head(msgspec.Struct, frozen=True):
    kind: str = ""
    metadata: _Metadata = _Metadata()


class Writer:
    """Writes on behalf of one leader."""

    def __init__(
        self,
        connection: Connection,
        cache: Cache,
        *,
        may_write: Callable[[], bool],
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """``may_write`` is asked before every write: a process that hung must not act on a lease that it lost."""
        self._connection, self._cache, self._may_write, self._timeout_s = connection, cache, may_write, timeout_s

    def check_leading(self, what: str) -> None:
        """Ask whether this process may still act; before calls of others than the API server too.

        Raises:
            NotLeading: it may not.
        """
        if not self._may_write():
            raise NotLeading(f"{what}: this process does not lead")

    async def apply(self, namespace: str, body: Mapping[str, Any], resource_version: str | None = None) -> bytes:
        """Server-side apply, forced, as our field manager. Returns the object as it is now.

        Raises:
            errors.Conflict: the object is not at ``resource_version``.
            errors.ApiError: the write failed.
            NotLeading: nothing was sent.
        """
        resource, name = of_body(body), _name(body)
        if resource_version is not None:
            body = {**body, "metadata": {**body["metadata"], "resourceVersion": resource_version}}
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        return await self._write(Call("apply", resource.path(namespace, name), resource.plural, query, body))

    async def create(self, namespace: str, body: Mapping[str, Any]) -> bool:
        """Create an object; False if one of its name is there, which stays as it is. Raises as ``apply``."""
        resource = of_body(body)
        try:
            await self._write(Call("create", resource.path(namespace), resource.plural, _MANAGER, body))
        except errors.AlreadyExists:
            return False
        return True

    async def delete(
        self, namespace: str, api_version: str, kind: str, name: str, *, uid: str, grace_s: int | None = None
    ) -> bool:
        """Delete exactly this object; False if it is gone or another one has its name. Raises as ``apply``.

        Args:
            namespace: Of the object.
            api_version: Of the object.
            kind: Of the object.
            name: Of the object.
            uid: Precondition.
            grace_s: 0 removes a pod without waiting for its node; None: its own grace period.
        """
        resource = of_kind(api_version, kind)
        options: dict[str, Any] = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            reply = await self._send(Call("delete", resource.path(namespace, name), resource.plural, body=options))
        except errors.NotFound:
            self._cache.observe_deletion(resource, namespace, name, uid)
            return False
        except errors.Conflict as error:
            if not error.uid_differs:
                raise
            self._cache.observe_deletion(resource, namespace, name, uid)
            return False
        head = msgspec.json.decode(reply, type=_Head)
        if head.kind == resource.kind:
            # It ends in its grace period, or when its finalizers are gone. One that went while it was being deleted
            # comes back without a version, which says nothing of its place in time: watches will.
            if head.metadata.resource_version:
                self._cache.observe_write(reply)
        else:
            self._cache.observe_deletion(resource, namespace, name, uid)
        return True

    async def delete_run(self, key: RunKey, uid: str) -> bool:
        """Delete a run; as ``delete``."""
        return await self.delete(key.namespace, RUN.api_version, RUN.kind, key.name, uid=uid)

    async def lift_gate(self, namespace: str, name: str, *, uid: str, resource_version: str) -> None:
        """Take our scheduling gate off a pod, and no other gate.

        A strategic merge patch finds the gate by its name, whatever other gates stand before it, and the server checks
        the resource version that it carries. Raises as ``apply``: ``Conflict`` if the pod changed, ``NotFound`` if it
        is gone.
        """
        body = {
            "metadata": {"uid": uid, "resourceVersion": resource_version},
            "spec": {"schedulingGates": [{"$patch": "delete", "name": names.SCHEDULING_GATE}]},
        }
        path = POD.path(namespace, name)
        await self._write(Call("patch", path, POD.plural, _MANAGER, body, STRATEGIC_MERGE_PATCH))

    async def change_owner(
        self, namespace: str, api_version: str, kind: str, name: str, *, uid: str, owner: Mapping[str, Any], owned: bool
    ) -> None:
        """Give an object an owner, or take that one away; others stay. Raises as ``apply``.

        Server-side apply could not take away an owner that a create set. Where the admission plugin
        OwnerReferencesPermissionEnforcement is on, this needs the right to delete the object.
        """
        resource = of_kind(api_version, kind)
        reference = owner if owned else {"$patch": "delete", "uid": owner["uid"]}
        body = {"metadata": {"uid": uid, "ownerReferences": [reference]}}
        path = resource.path(namespace, name)
        await self._write(Call("patch", path, resource.plural, _MANAGER, body, STRATEGIC_MERGE_PATCH))

    async def annotate(self, namespace: str, kind: str, name: str, *, uid: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of a StatefulSet or Deployment, beside what is applied. Raises as ``apply``."""
        resource = of_kind("apps/v1", kind)
        body = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        await self._write(Call("patch", resource.path(namespace, name), resource.plural, _MANAGER, body))

    async def relabel(self, namespace: str, body: Mapping[str, Any]) -> None:
        """Give an object the labels of ``body``. Raises as ``apply``.

        Server-side apply would write a ControllerRevision's data in another order of keys, which is refused.
        """
        resource, name = of_body(body), _name(body)
        labels = {"metadata": {"labels": body["metadata"]["labels"]}}
        await self._write(Call("patch", resource.path(namespace, name), resource.plural, _MANAGER, labels))

    async def write_status(self, run: RunRecord, status: Mapping[str, Any]) -> RunRecord:
        """Replace a run's whole status, if the run is still as it was read. Returns the run as it is now.

        Raises:
            errors.Conflict: it was changed since; read it again.
            errors.ApiError: the write failed.
            NotLeading: nothing was sent.
        """
        body = {
            "apiVersion": RUN.api_version,
            "kind": RUN.kind,
            "metadata": {
                "namespace": run.key.namespace,
                "name": run.key.name,
                "uid": run.uid,
                "resourceVersion": run.resource_version,
            },
            "status": status,
        }
        path = RUN.path(run.key.namespace, run.key.name, "status")
        return decode.run(await self._write(Call("update", path, f"{RUN.plural}/status", _MANAGER, body)))

    async def _write(self, call: Call) -> bytes:
        reply = await self._send(call)
        self._cache.observe_write(reply)
        return reply

    async def _send(self, call: Call) -> bytes:
        self.check_leading(str(call))
        return await self._connection.request(replace(call, timeout_s=self._timeout_s))


_MANAGER = {"fieldManager": names.FIELD_MANAGER}


def _name(body: Mapping[str, Any]) -> str:
    name = (body.get("metadata") or {}).get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"metadata.name of a {body.get('kind')}: found {name!r}, accepted is a name")
    return name
