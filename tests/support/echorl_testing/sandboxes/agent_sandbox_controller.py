"""agent-sandbox's controller, played: what it does with Sandboxes, pools and claims, as far as a broker sees it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from echorl_testing.cluster.api import Api, ApiError
from echorl_testing.sandboxes.agent_sandbox import API, collection

RESERVED = "agents.x-k8s.io/"
"""Labels and annotations that begin so are the controller's; a template's are not taken over."""
_POOL, _CLAIM_UID, _TEMPLATE = f"{RESERVED}warm-pool-sandbox", f"{RESERVED}claim-uid", f"{RESERVED}template"
_EVERY_S = 0.1
Object = dict[str, Any]


@asynccontextmanager
async def played_controller(api: Api, namespace: str) -> AsyncIterator[None]:
    """Do for the objects of a namespace what their controller does, until the end."""

    async def work() -> None:
        while True:
            await asyncio.to_thread(_Look(api, namespace).once)
            await asyncio.sleep(_EVERY_S)

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class _Look:
    """One turn in a namespace. What is being deleted is left to the garbage collector."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace

    def once(self) -> None:
        sandboxes = self._living("Sandbox")
        for sandbox in sandboxes:
            self._follow_pod(sandbox)
        for pool in self._living("SandboxWarmPool"):
            members = [one for one in sandboxes if _owner(one) == pool["metadata"]["uid"]]
            self._fill(pool, members)
        free = [one for one in sandboxes if _POOL in one["metadata"].get("labels", {})]
        for claim in self._living("SandboxClaim"):
            with suppress(ApiError):  # It, or what it was to get, may be gone meanwhile.
                self._serve(claim, sandboxes, free)

    def _living(self, kind: str) -> list[Object]:
        try:
            found: list[Object] = self._api.get(collection(kind, self._namespace))["items"]
        except ApiError as error:
            if error.code == 404:
                return []
            raise
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    def _fill(self, pool: Object, members: list[Object]) -> None:
        """Make the pool's sandboxes as many as it wants; those that are not ready go first."""
        replicas = pool["spec"]["replicas"]
        template = self._template(pool)
        for _ in range(len(members), replicas if template is not None else 0):
            assert template is not None
            name = pool["metadata"]["name"]
            labels = {_POOL: "of-a-pool", _TEMPLATE: "of-a-template"}
            made = {"generateName": f"{name}-", "labels": labels, "ownerReferences": [_owned_by(pool)]}
            self._create_sandbox(made, template)
        for one in sorted(members, key=_is_ready)[: max(0, len(members) - replicas)]:
            self._api.delete(f"{collection('Sandbox', self._namespace)}/{one['metadata']['name']}")

    def _serve(self, claim: Object, sandboxes: list[Object], free: list[Object]) -> None:
        """Give a claim one of its pool's, a ready one first; or make it one of its own name."""
        uid, name = claim["metadata"]["uid"], claim["metadata"]["name"]
        got = next((one for one in sandboxes if _owner(one) == uid), None)
        if got is not None:
            self._tell(claim, got)
            return
        pool = self._api.find(
            f"{collection('SandboxWarmPool', self._namespace)}/{claim['spec']['warmPoolRef']['name']}"
        )
        template = None if pool is None else self._template(pool)
        if pool is None or template is None:
            self._say(
                "SandboxClaim", claim, "False", f'SandboxWarmPool "{claim["spec"]["warmPoolRef"]["name"]}" not found'
            )
            return
        fit = sorted((one for one in free if _owner(one) == pool["metadata"]["uid"]), key=_is_ready, reverse=True)
        if not fit:
            labels = {_CLAIM_UID: uid, _TEMPLATE: "of-a-template"}
            self._create_sandbox({"name": name, "labels": labels, "ownerReferences": [_owned_by(claim)]}, template)
            return
        free.remove(fit[0])
        labels = {_POOL: None, _CLAIM_UID: uid}
        path = f"{collection('Sandbox', self._namespace)}/{fit[0]['metadata']['name']}"
        self._api.patch(path, {"metadata": {"labels": labels, "ownerReferences": [_owned_by(claim)]}})

    def _create_sandbox(self, metadata: Object, template: Object) -> None:
        body = {"apiVersion": API, "kind": "Sandbox", "metadata": metadata}
        with suppress(ApiError):  # Tried again at the next turn.
            self._api.create(
                collection("Sandbox", self._namespace),
                {**body, "spec": {"podTemplate": template["spec"]["podTemplate"]}},
            )

    def _template(self, pool: Object) -> Object | None:
        name = pool["spec"]["sandboxTemplateRef"]["name"]
        found: Object | None = self._api.find(f"{collection('SandboxTemplate', self._namespace)}/{name}")
        return found

    def _tell(self, claim: Object, sandbox: Object) -> None:
        ready = (sandbox.get("status", {}).get("conditions") or [{"status": "False", "message": ""}])[0]
        status = {"sandbox": {"name": sandbox["metadata"]["name"]}}
        self._say("SandboxClaim", claim, ready["status"], ready["message"], status)

    def _follow_pod(self, sandbox: Object) -> None:
        """Make its pod where there is none, also where there was one, and keep what it says; tell of it."""
        name, uid = sandbox["metadata"]["name"], sandbox["metadata"]["uid"]
        pods = f"/api/v1/namespaces/{self._namespace}/pods"
        ready, message = False, ""
        try:
            pod = self._api.find(f"{pods}/{name}")
            if pod is None:
                # What was listed may have been deleted since, and its pod with it.
                now = self._api.find(f"{collection('Sandbox', self._namespace)}/{name}")
                if now is None or now["metadata"]["uid"] != uid or "deletionTimestamp" in now["metadata"]:
                    return
                pod = self._api.create(pods, _pod(sandbox))
            if _owner(pod) == uid:
                message = f"Pod exists with phase: {pod['status'].get('phase', '')}"
                conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
                ready = conditions.get("Ready") == "True" and bool(pod["status"].get("podIPs"))
                self._keep_metadata(f"{pods}/{name}", pod, _pod(sandbox))
            else:
                message = f'Error seen: pod "{name}" is owned by another'
        except ApiError as error:
            message = f"Error seen: {error.status.get('message', '')}"
        self._say("Sandbox", sandbox, str(ready), message)

    def _keep_metadata(self, path: str, pod: Object, wanted: Object) -> None:
        """Write the template's labels and annotations again where somebody changed them; others' stay."""
        change = {
            part: {key: value for key, value in wanted["metadata"][part].items() if _of(pod, part).get(key) != value}
            for part in ("labels", "annotations")
        }
        if any(change.values()) and "deletionTimestamp" not in pod["metadata"]:
            self._api.patch(path, {"metadata": change})

    def _say(self, kind: str, held: Object, ready: str, message: str, more: Mapping[str, Any] | None = None) -> None:
        before, told = held.get("status", {}), {"type": "Ready", "status": ready, "message": message}
        known = (before.get("conditions") or [{}])[0].items() >= told.items()
        if known and all(before.get(part) == value for part, value in (more or {}).items()):
            return
        condition = {**told, "reason": "DependenciesReady" if ready == "True" else "DependenciesNotReady"}
        condition["lastTransitionTime"] = held["metadata"]["creationTimestamp"]
        with suppress(ApiError):  # It may be gone meanwhile.
            path = f"{collection(kind, self._namespace)}/{held['metadata']['name']}/status"
            self._api.patch(path, {"status": {"conditions": [condition], **(more or {})}})


def _is_ready(sandbox: Object) -> bool:
    return any(one["status"] == "True" for one in sandbox.get("status", {}).get("conditions", ()))


def _of(held: Object, part: str) -> Mapping[str, str]:
    found: Mapping[str, str] = held["metadata"].get(part, {})
    return found


def _owner(held: Object) -> str:
    owners = held["metadata"].get("ownerReferences") or [{}]
    uid: str = owners[0].get("uid", "")
    return uid


def _owned_by(held: Object) -> Object:
    metadata = held["metadata"]
    owner = {"apiVersion": held["apiVersion"], "kind": held["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {**owner, "controller": True, "blockOwnerDeletion": True}


def _pod(sandbox: Object) -> Object:
    metadata, template = sandbox["metadata"], sandbox["spec"]["podTemplate"]
    taken = {
        part: {key: value for key, value in template["metadata"].get(part, {}).items() if not key.startswith(RESERVED)}
        for part in ("labels", "annotations")
    }
    taken["labels"][f"{RESERVED}sandbox-name-hash"] = metadata["name"][-8:]
    return {
        "metadata": {"name": metadata["name"], **taken, "ownerReferences": [_owned_by(sandbox)]},
        "spec": template["spec"],
    }
