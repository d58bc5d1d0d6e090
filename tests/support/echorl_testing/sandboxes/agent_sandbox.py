"""agent-sandbox in a test cluster, as far as a broker sees it: a CRD of its fields, and its controller, played.

What is in a pod's spec is not declared here: the API server takes all of it, as a pod's own it is checked once made.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from echorl_testing.cluster.api import Api, ApiError, granted
from echorl_testing.cluster.processes import wait_for

CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/sandboxes.agents.x-k8s.io"
RESERVED = "agents.x-k8s.io/"
"""Labels and annotations that begin so are the controller's; a template's are not taken over."""
_API = "agents.x-k8s.io/v1beta1"
_EVERY_S = 0.05
_PATIENCE_S = 60.0


def sandboxes_path(namespace: str) -> str:
    """The collection of Sandboxes of a namespace."""
    return f"/apis/{_API}/namespaces/{namespace}/sandboxes"


def install_sandbox_crd(api: Api) -> None:
    """Apply the CRD of Sandboxes and wait until they can be read."""
    api.apply(CRD_PATH, _crd())
    wait_for(
        "Sandboxes are served",
        lambda: granted(lambda: api.get(f"/apis/{_API}/sandboxes")),
        seconds=_PATIENCE_S,
    )


def remove_sandbox_crd(api: Api) -> None:
    """Delete the CRD and wait until the API server knows nothing of it."""
    api.delete(CRD_PATH)
    wait_for(
        "Sandboxes are not served",
        lambda: not granted(lambda: api.get(f"/apis/{_API}/sandboxes")),
        seconds=_PATIENCE_S,
    )


def _crd() -> dict[str, Any]:
    text, whatever = {"type": "string"}, {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    texts = {"type": "object", "additionalProperties": text}
    labelled = _object(labels=texts, annotations=texts)
    spec = _object(
        podTemplate={**_object(metadata=labelled, spec=whatever), "required": ["spec"]},
        volumeClaimTemplates={"type": "array", "items": whatever},
        service={"type": "boolean"},
        shutdownTime={**text, "format": "date-time"},
        shutdownPolicy={**text, "enum": ["Delete", "Retain"], "default": "Retain"},
        operatingMode={**text, "enum": ["Running", "Suspended"], "default": "Running"},
    )
    condition = _object(type=text, status=text, reason=text, message=text, lastTransitionTime=text)
    status = _object(conditions={"type": "array", "items": condition})
    held = {**_object(spec={**spec, "required": ["podTemplate"]}, status=status), "required": ["spec"]}
    group, version = _API.split("/")
    served = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"sandboxes.{group}",
            # Groups of Kubernetes' own are taken with a word on who approved them, or that nobody did.
            "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"},
        },
        "spec": {
            "group": group,
            "names": {"kind": "Sandbox", "listKind": "SandboxList", "plural": "sandboxes", "singular": "sandbox"},
            "scope": "Namespaced",
            "versions": [{**served, "schema": {"openAPIV3Schema": held}}],
        },
    }


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@asynccontextmanager
async def played_controller(api: Api, namespace: str) -> AsyncIterator[None]:
    """Do for the Sandboxes of a namespace what their controller does, until the end."""

    async def work() -> None:
        while True:
            await asyncio.to_thread(_look, api, namespace)
            await asyncio.sleep(_EVERY_S)

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _look(api: Api, namespace: str) -> None:
    for sandbox in api.get(sandboxes_path(namespace))["items"]:
        # One that is being deleted is left to the garbage collector.
        if "deletionTimestamp" not in sandbox["metadata"]:
            _reconcile(api, namespace, sandbox)


def _reconcile(api: Api, namespace: str, sandbox: dict[str, Any]) -> None:
    """Make its pod where there is none, also where there was one; tell of it."""
    name, uid = sandbox["metadata"]["name"], sandbox["metadata"]["uid"]
    pods = f"/api/v1/namespaces/{namespace}/pods"
    ready, message = False, ""
    try:
        pod = api.find(f"{pods}/{name}") or api.create(pods, _pod(sandbox))
        if pod["metadata"].get("ownerReferences", [{}])[0].get("uid") == uid:
            message = f"Pod exists with phase: {pod['status'].get('phase', '')}"
            conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
            ready = conditions.get("Ready") == "True" and bool(pod["status"].get("podIPs"))
        else:
            message = f'Error seen: pod "{name}" is owned by another'
    except ApiError as error:
        message = f"Error seen: {error.status.get('message', '')}"
    told = {"type": "Ready", "status": str(ready), "message": message}
    before = (sandbox.get("status", {}).get("conditions") or [{}])[0]
    if before.items() >= told.items():
        return
    condition = {**told, "reason": "DependenciesReady" if ready else "DependenciesNotReady"}
    condition["lastTransitionTime"] = sandbox["metadata"]["creationTimestamp"]
    with suppress(ApiError):  # It may be gone meanwhile.
        api.patch(f"{sandboxes_path(namespace)}/{name}/status", {"status": {"conditions": [condition]}})


def _pod(sandbox: dict[str, Any]) -> dict[str, Any]:
    metadata, template = sandbox["metadata"], sandbox["spec"]["podTemplate"]
    taken = {
        part: {key: value for key, value in template["metadata"].get(part, {}).items() if not key.startswith(RESERVED)}
        for part in ("labels", "annotations")
    }
    taken["labels"][f"{RESERVED}sandbox-name-hash"] = metadata["name"][-8:]
    owner = {"apiVersion": _API, "kind": "Sandbox", "name": metadata["name"], "uid": metadata["uid"]}
    owners = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    return {"metadata": {"name": metadata["name"], **taken, "ownerReferences": owners}, "spec": template["spec"]}
