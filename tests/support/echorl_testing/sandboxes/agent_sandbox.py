"""agent-sandbox in a test cluster, as far as a broker sees it: CRDs of the fields that its objects have.

What is in a pod's spec is not declared here: the API server takes all of it, as a pod's own it is checked once made.
"""

from functools import partial
from typing import Any

from echorl_testing.cluster.api import Api, granted
from echorl_testing.cluster.processes import wait_for

API = "agents.x-k8s.io/v1beta1"
EXTENSIONS = "extensions.agents.x-k8s.io/v1beta1"
_PATIENCE_S = 60.0


def collection(kind: str, namespace: str) -> str:
    """The collection of one kind of a namespace."""
    return f"/apis/{_version(kind)}/namespaces/{namespace}/{_plural(kind)}"


def install_sandbox_crds(api: Api) -> None:
    """Apply the CRDs of Sandboxes, templates, pools and claims, and wait until they can be read."""
    for kind, crd in _crds().items():
        api.apply(_path(kind), crd)
    for kind in _crds():
        wait_for(f"{kind} is served", partial(_is_served, api, kind), seconds=_PATIENCE_S)


def remove_sandbox_crds(api: Api) -> None:
    """Delete the CRDs and wait until the API server knows nothing of them."""
    for kind in _crds():
        api.delete(_path(kind))
    for kind in _crds():
        wait_for(f"{kind} is not served", partial(_is_gone, api, kind), seconds=_PATIENCE_S)


def _is_served(api: Api, kind: str) -> bool:
    return granted(lambda: api.get(f"/apis/{_version(kind)}/{_plural(kind)}"))


def _is_gone(api: Api, kind: str) -> bool:
    return not _is_served(api, kind)


def _path(kind: str) -> str:
    return f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{_plural(kind)}.{_version(kind).partition('/')[0]}"


def _version(kind: str) -> str:
    return API if kind == "Sandbox" else EXTENSIONS


def _plural(kind: str) -> str:
    return f"{kind.lower()}es" if kind.endswith("x") else f"{kind.lower()}s"


def _crds() -> dict[str, dict[str, Any]]:
    text, whatever = {"type": "string"}, {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    number = {"type": "integer", "format": "int32"}
    texts = {"type": "object", "additionalProperties": text}
    metadata = _object(labels=texts, annotations=texts)
    named = {**_object(name=text), "required": ["name"]}
    blueprint = {
        "podTemplate": {**_object(metadata=metadata, spec=whatever), "required": ["spec"]},
        "volumeClaimTemplates": {"type": "array", "items": whatever},
        "service": {"type": "boolean"},
    }
    condition = _object(type=text, status=text, reason=text, message=text, lastTransitionTime=text)
    conditions = {"type": "array", "items": condition}
    sandbox = _object(
        **blueprint,
        shutdownTime={**text, "format": "date-time"},
        shutdownPolicy={**text, "enum": ["Delete", "Retain"], "default": "Retain"},
        operatingMode={**text, "enum": ["Running", "Suspended"], "default": "Running"},
    )
    template = _object(
        **blueprint,
        networkPolicy=whatever,
        networkPolicyManagement={**text, "enum": ["Managed", "Unmanaged"], "default": "Managed"},
        envVarsInjectionPolicy={**text, "enum": ["Allowed", "Overrides", "Disallowed"], "default": "Disallowed"},
        volumeClaimTemplatesPolicy={**text, "enum": ["Allowed", "Overrides", "Disallowed"], "default": "Disallowed"},
    )
    pool = _object(
        replicas={**number, "minimum": 0, "default": 1},
        sandboxTemplateRef=named,
        updateStrategy=_object(type={**text, "enum": ["Recreate", "OnReplenish"], "default": "OnReplenish"}),
    )
    lifecycle = _object(
        shutdownTime={**text, "format": "date-time"}, ttlSecondsAfterFinished=number, shutdownPolicy=text
    )
    variable = _object(name=text, value=text, containerName=text)
    claim = _object(
        warmPoolRef=named,
        lifecycle=lifecycle,
        additionalPodMetadata=metadata,
        safeToEvict=text,
        env={"type": "array", "items": variable},
    )
    got = _object(name=text, podIPs={"type": "array", "items": text})
    return {
        "Sandbox": _crd("Sandbox", sandbox, "podTemplate", conditions=conditions),
        "SandboxTemplate": _crd("SandboxTemplate", template, "podTemplate"),
        "SandboxWarmPool": _crd(
            "SandboxWarmPool", pool, "sandboxTemplateRef", replicas=number, readyReplicas=number, selector=text
        ),
        "SandboxClaim": _crd("SandboxClaim", claim, "warmPoolRef", conditions=conditions, sandbox=got),
    }


def _crd(kind: str, spec: dict[str, Any], required: str, **status: dict[str, Any]) -> dict[str, Any]:
    held = {**_object(spec={**spec, "required": [required]}, status=_object(**status)), "required": ["spec"]}
    (group, version), plural = _version(kind).split("/"), _plural(kind)
    served = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            # Groups of Kubernetes' own are taken with a word on who approved them, or that nobody did.
            "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"},
        },
        "spec": {
            "group": group,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "scope": "Namespaced",
            "versions": [{**served, "schema": {"openAPIV3Schema": held}}],
        },
    }


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties}
