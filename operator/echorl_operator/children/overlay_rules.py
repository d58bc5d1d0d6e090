"""What ``spec.<role>.template`` may not set, and why.

The right to create runs must not become the right to every secret or to the node, so a template can neither take
another service account, nor leave the ``restricted`` Pod Security Standard (but for IPC_LOCK, which RDMA needs), nor
touch what the operator tells attempts and roles apart by. A ValidatingAdmissionPolicy says the same to the API server.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from echorl_core.problem import Problem
from echorl_manifest.schema import found_text
from echorl_operator import names
from echorl_operator.children import cluster_placement as places
from echorl_operator.children.security_rules import container_context_problems, pod_context_problems

REFUSED_POD_FIELDS: Mapping[str, str] = {
    "serviceAccountName": "pods of a run have service accounts without rights",
    "serviceAccount": "pods of a run have service accounts without rights",
    "automountServiceAccountToken": "pods of a run carry no Kubernetes token",
    "hostNetwork": "network.host of trainer and inference says it, where the installation allows it",
    "hostPID": "pods of a run share nothing with their node",
    "hostIPC": "pods of a run share nothing with their node",
    "restartPolicy": "the operator decides what is restarted",
    "schedulingGates": "the operator decides when a gang may start",
    "hostname": "roles find each other by it",
    "subdomain": "roles find each other by it",
    "setHostnameAsFQDN": "roles find each other by the hostname",
    "nodeName": "it passes by the scheduler and its gates; use nodeSelector or affinity",
    "ephemeralContainers": "a template cannot have them",
}
REFUSED_CONTAINER_FIELDS: Mapping[str, str] = {
    "restartPolicy": "the operator decides what is restarted",
    "restartPolicyRules": "the operator decides what is restarted",
}
VOLUME_SOURCES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
"""The volume types of the ``restricted`` standard."""
OUR_CONTAINERS = tuple(role.value for role in names.PodRole)
OUR_VOLUMES = ("config", "volume", "code")
OUR_MOUNTS = ("/etc/echorl", places.VOLUME, places.MODELS, places.CODE)
OUR_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
OUR_VARIABLE_PREFIX = "ECHORL_"
OUR_DOMAIN = f"{names.GROUP}/"
POD_INDEX = "apps.kubernetes.io/pod-index"
"""Label of a StatefulSet's pods, written by its controller; network policies and rank numbers rest on it."""

LABEL_REASON = "the operator knows its pods by it"
VOLUME_REASON = "not in the restricted standard"
TOKEN_REASON = "pods of a run carry no Kubernetes token"  # noqa: S105 - words about one
HOST_PORT_REASON = "pods of a run take no port of a node"

_KEYED_LISTS = {"containers": "name", "initContainers": "name", "volumes": "name"}
_CONTAINER_LISTS = {"env": "name", "volumeMounts": "mountPath"}
_NO_VALUE = "no value"


def overlay_problems(template: Any, path: str) -> list[Problem]:
    """Everything in an overlay that is refused; empty if it may be merged.

    Args:
        template: the overlay.
        path: its place in the manifest, ``spec.trainer.template``.
    """
    problems = list(_shape(template, path, "a pod template with metadata and spec"))
    if problems:
        return problems
    for key, part in template.items():
        if key not in {"metadata", "spec"}:
            problems.append(_refused(f"{path}.{key}", part, "a pod template has metadata and spec", "metadata or spec"))
    metadata, spec = ({} if template.get(key) is None else template[key] for key in ("metadata", "spec"))
    return [*problems, *_metadata(metadata, f"{path}.metadata"), *_spec(spec, f"{path}.spec")]


def _refused(path: str, found: object, reason: str, accepted: str = _NO_VALUE) -> Problem:
    return Problem(path, found_text(found), accepted, reason)


def _shape(value: Any, path: str, accepted: str) -> Iterator[Problem]:
    if not isinstance(value, Mapping):
        yield Problem(path, found_text(value), accepted)


def _metadata(metadata: Any, path: str) -> Iterator[Problem]:
    yield from (problems := list(_shape(metadata, path, "a mapping with labels and annotations")))
    if problems:
        return
    for field, entries in metadata.items():
        if field not in {"labels", "annotations"}:
            yield _refused(f"{path}.{field}", entries, "templates set labels and annotations", "labels or annotations")
            continue
        yield from _shape({} if entries is None else entries, f"{path}.{field}", "a mapping of texts")
        for key, text in entries.items() if isinstance(entries, Mapping) else ():
            where = f'{path}.{field}["{key}"]'
            if key in names.OUR_LABELS or key == POD_INDEX or key.startswith(OUR_DOMAIN):
                yield _refused(where, text, LABEL_REASON, "another key")
            elif not isinstance(text, str):
                yield Problem(where, found_text(text), "a text")


def _spec(spec: Any, path: str) -> Iterator[Problem]:
    yield from (problems := list(_shape(spec, path, "a pod spec")))
    if problems:
        return
    for field, reason in REFUSED_POD_FIELDS.items():
        if spec.get(field) is not None:
            yield _refused(f"{path}.{field}", spec[field], reason)
    yield from pod_context_problems(spec.get("securityContext"), f"{path}.securityContext")
    for index, volume in _named(spec, "volumes"):
        yield from _volume(volume, f"{path}.volumes[{index}]")
    for field in ("containers", "initContainers"):
        for index, container in _named(spec, field):
            yield from _container(container, f"{path}.{field}[{index}]")
    yield from _lists(spec, _KEYED_LISTS, path)
    yield from _tolerations(spec.get("tolerations"), f"{path}.tolerations")


def _tolerations(items: Any, path: str) -> Iterator[Problem]:
    if items is None:
        return
    fields = ("key", "effect", "operator", "value")
    for item in items if isinstance(items, list) else [None]:
        if not isinstance(item, Mapping) or not all(isinstance(item.get(field), str | None) for field in fields):
            yield Problem(path, found_text(items), f"a list of mappings with texts as {', '.join(fields)}")
            return


def _lists(owner: Mapping[str, Any], lists: Mapping[str, str], path: str) -> Iterator[Problem]:
    """Items that cannot be merged: not a mapping, without their name, or twice."""
    for field, key in lists.items():
        items = owner.get(field)
        if items is None:
            continue
        if not isinstance(items, list):
            yield Problem(f"{path}.{field}", found_text(items), "a list")
            continue
        seen: set[str] = set()
        for index, item in enumerate(items):
            name = item.get(key) if isinstance(item, Mapping) else None
            if not isinstance(name, str) or not name:
                yield Problem(f"{path}.{field}[{index}]", found_text(item), f"a mapping with {key}")
            elif name in seen:
                yield Problem(f"{path}.{field}[{index}].{key}", found_text(name), f"a {key} of its own")
            else:
                seen.add(name)


def _named(owner: Mapping[str, Any], field: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    items = owner.get(field)
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, Mapping):
            yield index, item


def _volume(volume: Mapping[str, Any], path: str) -> Iterator[Problem]:
    if (name := volume.get("name")) in OUR_VOLUMES:
        yield _refused(f"{path}.name", name, "the operator's own volume", "another name")
    for source, content in volume.items():
        if source != "name" and content is not None and source not in VOLUME_SOURCES:
            accepted = f"one of {', '.join(sorted(VOLUME_SOURCES))}"
            yield _refused(f"{path}.{source}", content, VOLUME_REASON, accepted)
    projected = volume.get("projected")
    for index, part in _named(projected if isinstance(projected, Mapping) else {}, "sources"):
        if (token := part.get("serviceAccountToken")) is not None:
            where = f"{path}.projected.sources[{index}].serviceAccountToken"
            yield _refused(where, token, TOKEN_REASON)


def _container(container: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for field, reason in REFUSED_CONTAINER_FIELDS.items():
        if container.get(field) is not None:
            yield _refused(f"{path}.{field}", container[field], reason)
    yield from _texts(container, path)
    context, where = container.get("securityContext"), f"{path}.securityContext"
    yield from container_context_problems(context, where)
    writable = context.get("readOnlyRootFilesystem") if isinstance(context, Mapping) else None
    if container.get("name") in OUR_CONTAINERS and writable is not None and writable is not True:
        yield _refused(f"{where}.readOnlyRootFilesystem", writable, "our images write to volumes alone", "true")
    yield from _lists(container, _CONTAINER_LISTS, path)
    for index, variable in _named(container, "env"):
        name = str(variable.get("name"))
        if name in OUR_VARIABLES or name.startswith(OUR_VARIABLE_PREFIX):
            yield _refused(f"{path}.env[{index}].name", name, "roles know who they are by it", "another name")
    for index, mount in _named(container, "volumeMounts"):
        where = str(mount.get("mountPath")).rstrip("/")
        if any(where == ours or where.startswith(f"{ours}/") for ours in OUR_MOUNTS):
            yield _refused(f"{path}.volumeMounts[{index}].mountPath", where, "we mount there", "another path")
    yield from _host_access(container, path)


def _texts(container: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for field in ("image", "imagePullPolicy", "workingDir"):
        if not isinstance(value := container.get(field), str | None):
            yield Problem(f"{path}.{field}", found_text(value), "a text")
    for field in ("command", "args"):
        texts = container.get(field)
        if texts is not None and not (isinstance(texts, list) and all(isinstance(text, str) for text in texts)):
            yield Problem(f"{path}.{field}", found_text(texts), "a list of texts")


def _host_access(container: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for index, port in _named(container, "ports"):
        if port.get("hostPort"):
            yield _refused(f"{path}.ports[{index}].hostPort", port["hostPort"], HOST_PORT_REASON)
    hooks = container.get("lifecycle")
    handlers = {f"lifecycle.{key}": hook for key, hook in (hooks if isinstance(hooks, Mapping) else {}).items()}
    handlers |= {key: container.get(key) for key in ("startupProbe", "livenessProbe", "readinessProbe")}
    for name, handler in handlers.items():
        for kind in ("httpGet", "tcpSocket"):
            action = handler.get(kind) if isinstance(handler, Mapping) else None
            if isinstance(action, Mapping) and action.get("host"):
                yield _refused(f"{path}.{name}.{kind}.host", action["host"], "the kubelet asks the pod itself")
