"""What the pods of all roles have in common: security, scratch space, shared memory, placement, probes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from echorl_core import names as core_names
from echorl_manifest.models.base import duration_seconds
from echorl_operator import names
from echorl_operator.children import node_network, storage, variables
from echorl_operator.children.overlay import merged
from echorl_operator.children.stored import stored
from echorl_operator.children.target import Object, Target
from echorl_operator.children.variables import HOME, TEMPORARY, TERMINATION_LOG
from echorl_operator.names import PodRole
from echorl_operator.quantities import total

USER = 10001
"""User and group id of every image."""
CONFIG = "/etc/echorl"
SCRATCH = "scratch"
SHARED_MEMORY = "shm"
WORK = "/var/run/echorl"

_PROBE_PERIOD_S = 10
_START_PERIOD_S = 2


@dataclass(frozen=True)
class Role:
    """What is particular to one role's container."""

    role: PodRole
    image: str
    command: Sequence[str]
    config: str
    """Name of the ConfigMap with its config."""
    env: Sequence[Object] = ()
    mounts: Sequence[Object] = ()
    volumes: Sequence[Object] = ()
    ports: Mapping[str, int] = field(default_factory=dict)
    probes: Mapping[str, Object] = field(default_factory=dict)
    restart_policy: str = "Never"
    grace_s: int = 30
    """Seconds between SIGTERM and SIGKILL."""
    notices: bool = True
    """Whether the role is told of them, and takes SIGTERM for a notice."""


def http_probe(path: str, port: str, *, failures: int, period_s: int = _PROBE_PERIOD_S) -> Object:
    """A probe of the kubelet's; it fails after ``failures`` bad answers in a row."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def probes(target: Target, path: str, port: str, *, unhealthy_s: float) -> dict[str, Object]:
    """Startup, liveness and readiness by one path. ``unhealthy_s``: without a good answer before the container ends."""
    start = -(-target.settings.start_deadline_seconds // _START_PERIOD_S)
    alive = max(3, -(-int(unhealthy_s) // _PROBE_PERIOD_S))
    return {
        "startupProbe": http_probe(path, port, failures=start, period_s=_START_PERIOD_S),
        "livenessProbe": http_probe(path, port, failures=alive),
        "readinessProbe": http_probe(path, port, failures=2),
    }


def stall_s(target: Target) -> float:
    """How long a role of the gang may go without a good answer, in seconds."""
    return duration_seconds(target.spec.stall_policy.no_step_for)


def pod_template(target: Target, what: Role) -> Object:
    """Metadata and spec of a role's pods, the user's template on top."""
    role = what.role
    template = {"metadata": {"labels": target.labels(role)}, "spec": _spec(target, what)}
    overlay, path = target.fields(role).template, f"spec.{role}.template"
    if role is PodRole.PREPARE:
        overlay, path = for_prepare(overlay), f"spec.{PodRole.ORCHESTRATOR}.template"
    template = merged(template, overlay, path)
    spec = template["spec"]
    if what.notices:
        own = next(container for container in spec["containers"] if container["name"] == role)
        # Of the user's template, if that has another one.
        own["env"].append(
            variables.variable(core_names.ENV_GRACE, str(spec.get("terminationGracePeriodSeconds", what.grace_s)))
        )
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        secure(container)
    node_network.take_ports(spec)
    complete: Object = stored(template)
    return complete


def bare_pod(target: Target, name: str, what: Role) -> Object:
    """A pod of no workload: the operator itself makes it again."""
    template = pod_template(target, what)
    pod = target.child("v1", "Pod", name, what.role)
    metadata = template["metadata"]
    pod["metadata"]["labels"] = metadata["labels"]
    if annotations := metadata.get("annotations"):
        pod["metadata"]["annotations"] = annotations
    return {**pod, "spec": template["spec"]}


def for_prepare(overlay: Mapping[str, Any]) -> Object:
    """The part of the orchestrator's template that prepare takes over.

    It runs where the orchestrator runs and imports the same code: placement, volumes, variables. A sidecar would keep
    it from ending; command, resources and probes are the orchestrator's own.
    """
    kept = ("name", "env", "envFrom", "volumeMounts", "volumeDevices", "securityContext", "imagePullPolicy")
    whole = overlay.get("spec") or {}
    spec = {key: part for key, part in whole.items() if key != "containers"}
    own = [container for container in whole.get("containers") or () if container.get("name") == PodRole.ORCHESTRATOR]
    if own:
        parts = {key: part for key, part in own[0].items() if key in kept}
        spec["containers"] = [{**parts, "name": PodRole.PREPARE.value}]
    return {**overlay, "spec": spec}


def base_spec(target: Target, role: PodRole) -> Object:
    """The part of a role's pod that has sizes: its container's resources and its shared memory."""
    return {
        "containers": [{"name": role.value, "resources": _resources(target, role)}],
        "volumes": _shared_memory(target, role),
    }


def _spec(target: Target, what: Role) -> Object:
    gpus = target.gpus(what.role)
    settings = target.settings
    spec: Object = {
        "containers": [_container(target, what)],
        "volumes": _volumes(target, what),
        "restartPolicy": what.restart_policy,
        "terminationGracePeriodSeconds": what.grace_s,
        **confined(target, what.role),
        **node_network.pod_fields(target.network(what.role)),
    }
    if gpus and settings.gpu_tolerations:
        spec["tolerations"] = [
            {"key": taint.key, "operator": "Exists", "effect": taint.effect} for taint in settings.gpu_tolerations
        ]
    if affinity := storage.affinity(target, what.role):
        spec["affinity"] = affinity
    return spec


def confined(target: Target, role: PodRole) -> Object:
    """Whom a role's pods run as, without any right, and what their images are pulled with."""
    spec: Object = {
        "serviceAccountName": names.role_account(target.name, role),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    secrets = [*(secret.name for secret in target.spec.image_pull_secrets), *target.settings.image_pull_secrets]
    if secrets:
        # The list is a map by name: the API server refuses one that has a name twice.
        spec["imagePullSecrets"] = [{"name": name} for name in dict.fromkeys(secrets)]
    return spec


def _container(target: Target, what: Role) -> Object:
    container: Object = {
        "name": what.role.value,
        "image": what.image,
        "imagePullPolicy": target.settings.image_pull_policy,
        "command": list(what.command),
        "workingDir": HOME,
        "env": [
            *(*what.env, *variables.folders(), *variables.offline(what.role), *variables.no_gpu(target, what.role)),
            *(variables.variable(*one) for one in node_network.variables(target.network(what.role))),
        ],
        "resources": _resources(target, what.role),
        "volumeMounts": _mounts(target, what),
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"readOnlyRootFilesystem": True, **node_network.security(target.network(what.role))},
        **what.probes,
    }
    if what.ports:
        container["ports"] = [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in what.ports.items()
        ]
    return container


def secure(container: Object) -> None:
    """What ``restricted`` wants of every container, those of the user included."""
    context = container.setdefault("securityContext", {})
    context.setdefault("allowPrivilegeEscalation", False)
    context.setdefault("capabilities", {}).setdefault("drop", ["ALL"])


def _resources(target: Target, role: PodRole) -> Object:
    defaults, gpus = target.defaults(role), target.gpus(role)
    requests = {
        name: total(defaults.requests.get(name, "0"), defaults.requests_per_gpu.get(name, "0"), gpus)
        for name in {**defaults.requests, **(defaults.requests_per_gpu if gpus else {})}
    }
    limits = dict(defaults.limits)
    if gpus:
        requests[target.settings.gpu_resource] = limits[target.settings.gpu_resource] = str(gpus)
    cards = node_network.devices(target.network(role))
    requests, limits = requests | cards, limits | cards
    return {name: part for name, part in (("requests", requests), ("limits", limits)) if part}


def _volumes(target: Target, what: Role) -> list[Object]:
    own: list[Object] = [
        {"name": "config", "configMap": {"name": what.config}},
        {"name": SCRATCH, "emptyDir": {"sizeLimit": target.defaults(what.role).scratch}},
    ]
    return [*own, *_shared_memory(target, what.role), *what.volumes]


def _mounts(target: Target, what: Role) -> list[Object]:
    mounts: list[Object] = [
        {"name": "config", "mountPath": CONFIG, "readOnly": True},
        # Folders of one volume: the kubelet makes them, and they share one limit.
        {"name": SCRATCH, "mountPath": HOME, "subPath": "home"},
        {"name": SCRATCH, "mountPath": TEMPORARY, "subPath": "tmp"},
        {"name": SCRATCH, "mountPath": WORK, "subPath": "work"},
    ]
    if _shared_memory(target, what.role):
        mounts.append({"name": SHARED_MEMORY, "mountPath": "/dev/shm"})  # noqa: S108 - Linux's place for it
    return [*mounts, *what.mounts]


def _shared_memory(target: Target, role: PodRole) -> list[Object]:
    """The volume behind ``/dev/shm``; none where the container runtime's own will do."""
    defaults = target.defaults(role)
    if defaults.shared_memory is None:
        return []
    size = total(defaults.shared_memory, defaults.shared_memory_per_gpu, target.gpus(role))
    return [{"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": size}}]
