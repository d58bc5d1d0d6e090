"""Paths of the kinds that the operator reads and writes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from echorl_operator import names


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of namespaced object."""

    api_version: str
    """``v1`` or ``group/version``."""
    kind: str
    plural: str
    metadata_only: bool = False
    """Lists and watches fetch nothing else, so that secrets' values never come here."""

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection, one object, or its subresource. No namespace: of all namespaces."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        parts = [root]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts += [self.plural, *(quote(part, safe="") for part in (name, subresource) if part is not None)]
        return "/".join(parts)


POD = Resource("v1", "Pod", "pods")
RUN = Resource(f"{names.GROUP}/{names.VERSION}", names.KIND, names.PLURAL)
LEASE = Resource("coordination.k8s.io/v1", "Lease", "leases")
EVENT = Resource("events.k8s.io/v1", "Event", "events")
CORE_EVENT = Resource("v1", "Event", "events")
"""Events as the core API has them; those of one object can be asked for alone."""
CHILDREN = (
    Resource("apps/v1", "StatefulSet", "statefulsets"),
    Resource("apps/v1", "Deployment", "deployments"),
    Resource("apps/v1", "ControllerRevision", "controllerrevisions"),
    Resource("v1", "Service", "services"),
    Resource("v1", "ConfigMap", "configmaps"),
    Resource("v1", "Secret", "secrets", metadata_only=True),
    Resource("v1", "ServiceAccount", "serviceaccounts"),
    Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
)
_BY_KIND = {(resource.api_version, resource.kind): resource for resource in (POD, RUN, LEASE, EVENT, *CHILDREN)}


def of_kind(api_version: str, kind: str) -> Resource:
    """The resource of one kind.

    Raises:
        ValueError: the operator does not handle that kind.
    """
    resource = _BY_KIND.get((api_version, kind))
    if resource is None:
        accepted = ", ".join(sorted(f"{v}/{k}" for v, k in _BY_KIND))
        raise ValueError(f"found kind {api_version}/{kind}, accepted are {accepted}")
    return resource


def of_body(body: Mapping[str, Any]) -> Resource:
    """The resource of an object with ``apiVersion`` and ``kind``; raises as ``of_kind``."""
    return of_kind(str(body.get("apiVersion")), str(body.get("kind")))
