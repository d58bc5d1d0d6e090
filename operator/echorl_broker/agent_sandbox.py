"""Sandboxes that agent-sandbox makes: the broker makes an object, its controller the pod.

The object is a ``Sandbox`` whose pod has its name, or, where a pool of the run keeps such sandboxes ready, a
``SandboxClaim`` on that. It bears the labels and annotations of its pod, so all that is known of a sandbox without its
pod is read from it as from a pod. It stays until its pod is gone.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from echorl_broker import labels
from echorl_broker.claims import (
    CLAIM,
    POOL,
    TEMPLATE,
    Claim,
    Pool,
    claim_of,
    pod_template,
    pool_for,
    pool_of,
    read_claim,
    read_held,
    read_pool,
    template_of,
    with_pod_of_claim,
    with_record,
)
from echorl_broker.pods import Cluster, Head, SandboxPod, sandbox_pod
from echorl_broker.profile import Object
from echorl_broker.runs import NoSandboxes
from echorl_operator import names
from echorl_operator.kube import errors
from echorl_operator.kube.connection import JSON, Call
from echorl_operator.kube.resources import POD, Resource
from echorl_operator.observed.records import PodRecord

SANDBOX = Resource("agents.x-k8s.io/v1beta1", "Sandbox", "sandboxes")


class AgentSandboxes(Cluster):
    """Calls of one API server that has agent-sandbox."""

    _kind: ClassVar[Resource] = SANDBOX
    # Who makes one of the same name anew meets no pod of its forerunner.
    _propagation: ClassVar[str] = "Foreground"

    async def sandbox(self, namespace: str, name: str) -> SandboxPod | None:
        """The Sandbox or claim of that name, with what its pod does; None if there is none."""
        held, found = await asyncio.gather(
            self._found(Call("get", CLAIM.path(namespace, name), CLAIM.plural)), super().sandbox(namespace, name)
        )
        if held is not None:
            claim = read_claim(held)
            return with_pod_of_claim(claim, await self._pod(namespace, claim.pod) if claim.pod else None)
        if found is None:
            return None
        pod = await self._pod(namespace, name)
        return with_pod(found, None if pod is None else pod.record)

    async def sandboxes(self, namespace: str | None) -> list[SandboxPod]:
        """All Sandboxes and claims of runs in a namespace, or (None) in all, with what their pods do.

        Beside them those of pools that nobody has, as pods.
        """
        found = await super().sandboxes(namespace)
        claims = [read_claim(item) for item in await self._list(CLAIM, namespace, names.SANDBOXES, JSON)]
        pods = [sandbox_pod(item) for item in await self._list(POD, namespace, names.SANDBOXES, JSON)]
        by_owner = {pod.record.meta.owner_uid: pod.record for pod in pods}
        by_name = {(pod.record.meta.namespace, pod.record.meta.name): pod for pod in pods}
        claimed = [((claim.held.record.meta.namespace, claim.pod), claim) for claim in claims]
        had = {place for place, _ in claimed}
        return [
            *(with_pod(one, by_owner.get(one.record.meta.uid)) for one in found),
            *(with_pod_of_claim(claim, by_name.get(place)) for place, claim in claimed),
            *(pod for place, pod in by_name.items() if pod.warm and place not in had),
        ]

    async def living(self, namespace: str, run_uid: str) -> list[Head]:
        """A run's Sandboxes and claims that are not being deleted, by key; before them what its pools keep ready."""
        made, claims = await asyncio.gather(
            super().living(namespace, run_uid), self._heads(CLAIM, namespace, labels.of_run(run_uid))
        )
        pools = await self.pools_of(namespace, run_uid)
        kept = [Head(pool.name, "", "") for pool in pools for _ in range(pool.replicas)]
        return kept + sorted(made + claims, key=lambda head: head.key)

    async def alike(self, namespace: str, run_uid: str, shape: str) -> int:
        """How many Sandboxes and claims of one shape a run has that are not being deleted."""
        selector = labels.of_shape(run_uid, shape)
        return sum([len(await self._heads(kind, namespace, selector)) for kind in (SANDBOX, CLAIM)])

    async def claims(self, namespace: str, run_uid: str) -> list[Claim]:
        """A run's claims."""
        return [read_claim(item) for item in await self._list(CLAIM, namespace, labels.of_run(run_uid), JSON)]

    async def pools(self, namespace: str | None) -> list[SandboxPod]:
        """Pools of runs in a namespace, or (None) in all, as one to reap each."""
        return [read_pool(item).held for item in await self._list(POOL, namespace, names.SANDBOXES, JSON)]

    async def pools_of(self, namespace: str, run_uid: str) -> list[Pool]:
        """A run's pools that are not being deleted, the oldest first."""
        pools = [read_pool(item) for item in await self._list(POOL, namespace, labels.of_run(run_uid), JSON)]
        living = (pool for pool in pools if pool.held.record.meta.deleted_at is None)
        return sorted(living, key=lambda pool: (pool.held.record.meta.created_at, pool.name))

    async def create(self, body: dict[str, Any]) -> None:
        """Make a claim on the pool of such pods, or, where there is none, a Sandbox.

        Raises errors.AlreadyExists where its name is taken.
        """
        pool, namespace = pool_for(body), body["metadata"]["namespace"]
        held = None if pool is None else await self._found(Call("get", POOL.path(namespace, pool), POOL.plural))
        if pool is not None and held is not None and read_pool(held).held.record.meta.deleted_at is None:
            await self._create(CLAIM, claim_of(body, pool))
        else:
            await self._create(SANDBOX, sandbox_of(body))

    async def create_pool(self, pod: Object, replicas: int) -> None:
        """Make a pool of such pods, and its template; nothing happens where it is there."""
        for kind, body in ((TEMPLATE, template_of(pod)), (POOL, pool_of(pod, replicas))):
            try:
                await self._create(kind, body)
            except errors.AlreadyExists:
                continue

    async def scale(self, pool: Pool, replicas: int) -> bool:
        """Have a pool keep so many ready; False where somebody has changed it since it was read."""
        meta = pool.held.record.meta
        seen = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        return await self._patch(POOL, meta, {"metadata": seen, "spec": {"replicas": replicas}})

    async def delete(self, namespace: str, name: str, uid: str) -> bool:
        """Delete exactly this Sandbox, claim or pool; False where it is gone."""
        if await self._delete(CLAIM, namespace, name, uid) or await self._delete(SANDBOX, namespace, name, uid):
            return True
        if not await self._delete(POOL, namespace, name, uid):
            return False
        with_its_name = Call("delete", TEMPLATE.path(namespace, name), TEMPLATE.plural)
        await self._found(with_its_name)
        return True

    def _read(self, body: bytes) -> SandboxPod:
        return read_held(body, SANDBOX)

    async def _pod(self, namespace: str, name: str) -> SandboxPod | None:
        body = await self._found(Call("get", POD.path(namespace, name), POD.plural))
        return None if body is None else sandbox_pod(body)

    async def _list(self, kind: Resource, namespace: str | None, selector: str, accept: str) -> Sequence[bytes]:
        try:
            return await super()._list(kind, namespace, selector, accept)
        except errors.NotFound as error:
            if kind is not SANDBOX:
                # Of the cluster's agent-sandbox without its extensions there are none.
                return []
            raise NoSandboxes(
                "spec.sandboxes.provider: found agent-sandbox, but the cluster has no Sandboxes of "
                f"{SANDBOX.api_version}; accepted is pod, or agent-sandbox once it is installed"
            ) from error


def sandbox_of(pod: dict[str, Any]) -> dict[str, Any]:
    """The Sandbox whose pod is this one: of its name, owner, labels and annotations."""
    return {
        "apiVersion": SANDBOX.api_version,
        "kind": SANDBOX.kind,
        "metadata": pod["metadata"],
        "spec": {"podTemplate": pod_template(pod)},
    }


def with_pod(sandbox: SandboxPod, pod: PodRecord | None) -> SandboxPod:
    """A Sandbox with the status of its pod; as it was where the pod is none, or another's."""
    meta = sandbox.record.meta
    if pod is None or pod.meta.owner_uid != meta.uid:
        return sandbox
    found = with_record(sandbox, pod)
    # Changes of it are seen from its pod on.
    seen = replace(found.record, meta=replace(meta, resource_version=pod.meta.resource_version))
    return replace(found, record=seen, followed=POD)
