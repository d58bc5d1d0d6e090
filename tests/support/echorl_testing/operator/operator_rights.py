"""The operator's rights on a real API server: granted from the one source, and compared with what was used."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from echorl_testing.cluster.api import Api
from echorl_testing.kube.fault_proxy import Record

RULES_FILE = Path(__file__).resolve().parents[4] / "charts" / "echorl" / "files" / "rules.yaml"
ACCOUNT = "echorl-operator"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_GROUP = "rbac.authorization.k8s.io"
_VERBS = {"apply": "patch"}

Right = tuple[str, str, str]
"""API group, resource with its subresource, verb."""
Rules = list[dict[str, Any]]


def rules() -> Mapping[str, Rules]:
    """By where they hold: ``runs`` and ``leader``."""
    found: dict[str, Rules] = yaml.safe_load(RULES_FILE.read_text())
    return found


def grant(api: Api, operator_namespace: str, namespaces: Sequence[str] | None) -> None:
    """Make the operator's service account and give it its rights: in these namespaces, or (None) everywhere."""
    api.create(f"/api/v1/namespaces/{operator_namespace}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": operator_namespace}
    found = rules()
    _bind(api, f"{ACCOUNT}-leader", found["leader"], subject, operator_namespace)
    if namespaces is None:
        _bind(api, f"{ACCOUNT}-{operator_namespace}", found["runs"], subject, None)
    for namespace in namespaces or ():
        _bind(api, ACCOUNT, found["runs"], subject, namespace)


def revoke(api: Api, operator_namespace: str) -> None:
    """Take back rights on the whole cluster; all others end with their namespaces."""
    for plural in ("clusterrolebindings", "clusterroles"):
        api.delete(f"{_RBAC}/{plural}/{ACCOUNT}-{operator_namespace}")


def granted() -> set[Right]:
    """All rights."""
    both = (rule for part in rules().values() for rule in part)
    return {
        (group, resource, verb)
        for rule in both
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(records: Iterable[Record]) -> set[Right]:
    """The rights that requests rest on, as far as they were let through."""
    return {right for record in records for right in _of(record)}


def _of(record: Record) -> Iterator[Right]:
    request, status = record.request, record.upstream_status
    if not request.resource or status is None or status in (401, 403):
        return
    parts = request.path.split("/")
    group = parts[2] if parts[1] == "apis" else ""
    resource = request.resource + (f"/{request.subresource}" if request.subresource else "")
    yield group, resource, _VERBS.get(request.verb, request.verb)
    if request.verb == "apply" and status == 201:
        # What an apply makes is authorized as a create, too.
        yield group, resource, "create"


def _bind(api: Api, name: str, found: Rules, subject: dict[str, str], namespace: str | None) -> None:
    kind, where = ("ClusterRole", _RBAC) if namespace is None else ("Role", f"{_RBAC}/namespaces/{namespace}")
    plural = kind.lower()
    api.create(f"{where}/{plural}s", {"metadata": {"name": name}, "rules": found})
    reference = {"apiGroup": _GROUP, "kind": kind, "name": name}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    api.create(f"{where}/{plural}bindings", binding)
