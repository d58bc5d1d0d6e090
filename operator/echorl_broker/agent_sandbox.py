"""Sandboxes that agent-sandbox makes: the broker makes an object ``Sandbox``, its controller the pod of that name.

A Sandbox bears the labels and annotations of its pod, so all that is known of a sandbox without its pod is read from it
as from a pod. It stays until its pod is gone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import msgspec

from echorl_broker.losses import DELETED
from echorl_broker.pods import Cluster, SandboxPod
from echorl_broker.runs import NoSandboxes
from echorl_operator import names
from echorl_operator.kube import errors
from echorl_operator.kube.connection import JSON, Call
from echorl_operator.kube.resources import POD, Resource
from echorl_operator.observed import decode
from echorl_operator.observed.records import PodRecord

SANDBOX = Resource("agents.x-k8s.io/v1beta1", "Sandbox", "sandboxes")
_NO_WORD = "it has not said why"


class _Condition(msgspec.Struct):
    type: str
    message: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Sandbox(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


_SANDBOX = msgspec.json.Decoder(_Sandbox)


class AgentSandboxes(Cluster):
    """Calls of one API server that has agent-sandbox."""

    _kind: ClassVar[Resource] = SANDBOX
    # Who makes one of the same name anew meets no pod of its forerunner.
    _propagation: ClassVar[str] = "Foreground"

    async def sandbox(self, namespace: str, name: str) -> SandboxPod | None:
        """The Sandbox of that name, with what its pod does; None if there is none."""
        found = await super().sandbox(namespace, name)
        if found is None:
            return None
        body = await self._found(Call("get", POD.path(namespace, name), POD.plural))
        return with_pod(found, None if body is None else decode.pod(body))

    async def sandboxes(self, namespace: str | None) -> list[SandboxPod]:
        """All Sandboxes of runs in a namespace, or (None) in all, with what their pods do."""
        found = await super().sandboxes(namespace)
        pods = [decode.pod(item) for item in await self._list(POD, namespace, names.SANDBOXES, JSON)]
        by_owner = {pod.meta.owner_uid: pod for pod in pods}
        return [with_pod(one, by_owner.get(one.record.meta.uid)) for one in found]

    async def create(self, body: dict[str, Any]) -> None:
        """Make a Sandbox of a pod. Raises errors.AlreadyExists where its name is taken."""
        await super().create(sandbox_of(body))

    def _read(self, body: bytes) -> SandboxPod:
        sandbox = super()._read(body)
        conditions = _SANDBOX.decode(body).status.conditions or ()
        said = next((one.message for one in conditions if one.type == "Ready"), "") or _NO_WORD
        words = f"the controller of agent-sandbox has not made its pod: {said}"
        return replace(sandbox, made=False, record=replace(sandbox.record, message=words, unscheduled=""))

    async def _list(self, kind: Resource, namespace: str | None, selector: str, accept: str) -> Sequence[bytes]:
        try:
            return await super()._list(kind, namespace, selector, accept)
        except errors.NotFound as error:
            raise NoSandboxes(
                "spec.sandboxes.provider: found agent-sandbox, but the cluster has no Sandboxes of "
                f"{SANDBOX.api_version}; accepted is pod, or agent-sandbox once it is installed"
            ) from error


def sandbox_of(pod: dict[str, Any]) -> dict[str, Any]:
    """The Sandbox whose pod is this one: of its name, owner, labels and annotations."""
    metadata = pod["metadata"]
    template = {"labels": metadata["labels"], "annotations": metadata["annotations"]}
    return {
        "apiVersion": SANDBOX.api_version,
        "kind": SANDBOX.kind,
        "metadata": metadata,
        "spec": {"podTemplate": {"metadata": template, "spec": pod["spec"]}},
    }


def with_pod(sandbox: SandboxPod, pod: PodRecord | None) -> SandboxPod:
    """A Sandbox with the status of its pod; as it was where the pod is none, or another's.

    The controller makes a pod that was deleted anew, empty: a sandbox whose pod is deleted is taken away.
    """
    meta = sandbox.record.meta
    if pod is None or pod.meta.owner_uid != meta.uid:
        return sandbox
    # Changes of it are seen from its pod on.
    record = replace(pod, meta=replace(meta, resource_version=pod.meta.resource_version))
    if pod.meta.deleted_at is not None and meta.deleted_at is None and not pod.reason:
        record = replace(record, reason=DELETED, message=f"its pod was deleted: {pod.disrupted or 'by hand'}")
    return replace(sandbox, made=True, record=record)
