"""A sandbox's pod: the ``restricted`` standard, no account, no names, no volume but its own, bounded in all. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from echorl_broker import labels
from echorl_broker.settings import BrokerSettings
from echorl_core.wire.sandboxes import Wanted
from echorl_operator import names
from echorl_operator.children.cluster_placement import SANDBOX_PORT
from echorl_operator.children.target import owner_reference
from echorl_operator.observed.records import Meta
from echorl_operator.quantities import canonical

Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as plain JSON."""
DAEMON_PORT = SANDBOX_PORT
USER = 1000
"""User and group of everything inside."""
PROGRAM = "/.echorl/daemon"
FILES = "/.echorl-files"
"""The daemon's own folder: output of commands, and their home."""
SANDBOX, INSTALL = "sandbox", "install"
"""Its container, and the one that puts the daemon there before."""
POOLED_S = 24 * 3600
"""The longest that a pod of a pool waits for somebody to have it."""
_GRACE_S = 1  # The daemon withstands SIGTERM, which a command could send as well.
_OWN_DISK = 32 << 20
"""Bytes for the daemon's program."""


@dataclass(frozen=True)
class Owner:
    """Whose a sandbox is."""

    namespace: str
    run: str
    uid: str
    attempt: str
    orchestrator_uid: str
    image_pull_secrets: Sequence[str] = ()


def sandbox_pod(
    owner: Owner, key: str | None, wanted: Wanted, settings: BrokerSettings, *, nonce: str, token_sha256: str
) -> Object:
    """The pod of one sandbox.

    Args:
        owner: whose it is.
        key: what its orchestrator calls it; None: it is warm, and lives so for its time before it has a second one.
        wanted: within the run's limits.
        settings: of the installation.
        nonce: for its annotation; the token can be made again from it.
        token_sha256: all that the pod knows of the token.
    """
    pod_labels = _labels(owner, wanted)
    annotations = {labels.NONCE: nonce, labels.TTL: str(math.ceil(wanted.ttl_s))}
    if key is None:
        name, lives_s = labels.warm_pod_name(owner.run, owner.uid, nonce), 2 * math.ceil(wanted.ttl_s)
        pod_labels[names.LABEL_WARM] = shape_of(wanted)
    else:
        name, lives_s = labels.pod_name(owner.run, owner.uid, key), math.ceil(wanted.ttl_s)
        annotations = {labels.KEY: key, **annotations}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(owner, name, pod_labels, annotations),
        "spec": _spec(owner, wanted, settings, token_sha256, lives_s),
    }


def pooled_pod(owner: Owner, wanted: Wanted, settings: BrokerSettings, *, token_sha256: str) -> Object:
    """What the pods of a pool are made by; its name is the pool's. Arguments as those of ``sandbox_pod``.

    They live as long as somebody else may keep them, and their time after that; whose one is, and until when, is
    written on it once somebody has it. The pool's controller would write what is said here over it again and again.
    """
    name = labels.pool_name(owner.run, owner.orchestrator_uid, shape_of(wanted))
    pod_labels = {**_labels(owner, wanted), names.LABEL_WARM: shape_of(wanted)}
    return {
        "metadata": _metadata(owner, name, pod_labels, {}),
        "spec": _spec(owner, wanted, settings, token_sha256, POOLED_S + math.ceil(wanted.ttl_s)),
    }


def _labels(owner: Owner, wanted: Wanted) -> dict[str, str]:
    made = {
        names.LABEL_NAME: names.APP_NAME,
        names.LABEL_MANAGED_BY: names.SANDBOXES_MANAGED_BY,
        names.LABEL_COMPONENT: names.SANDBOX,
        names.LABEL_ROLE: names.SANDBOX,
        names.LABEL_RUN: owner.run,
        names.LABEL_RUN_UID: owner.uid,
        names.LABEL_ATTEMPT: owner.attempt,
        labels.ORCHESTRATOR_UID: owner.orchestrator_uid,
    }
    return {**made, names.LABEL_GATEWAY: "allowed"} if wanted.gateway else made


def _metadata(owner: Owner, name: str, pod_labels: Mapping[str, str], annotations: Mapping[str, str]) -> Object:
    return {
        "name": name,
        "namespace": owner.namespace,
        "labels": dict(pod_labels),
        "annotations": {
            **annotations,
            # A node that is let go would take the episode with it.
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        },
        "ownerReferences": [owner_reference(owner.run, owner.uid)],
    }


def shape_of(wanted: Wanted) -> str:
    """A short name for all that one sandbox is made by; of two that have the same either will do."""
    return labels.digest_of(msgspec.json.encode(wanted, order="sorted").decode())


def claim(meta: Meta, key: str, ttl_s: float, *, now: float, unchanged: bool = True) -> Object:
    """What changes of a warm pod that becomes the sandbox ``key`` (a merge patch); its time of ``ttl_s`` begins.

    Where it is to be ``unchanged``, it is refused if anybody has changed the pod since it was read: so one has it.
    """
    lives_s = math.ceil(now - meta.created_at) + math.ceil(ttl_s)
    return {
        "metadata": {
            "uid": meta.uid,
            **({"resourceVersion": meta.resource_version} if unchanged else {}),
            "labels": {names.LABEL_CLAIM: labels.digest_of(key)},
            "annotations": {labels.KEY: key, labels.TTL: str(lives_s), labels.CLAIMED_AT: f"{now:.6f}"},
        },
        "spec": {"activeDeadlineSeconds": lives_s},
    }


def _spec(owner: Owner, wanted: Wanted, settings: BrokerSettings, token_sha256: str, ttl_s: int) -> Object:
    secrets = dict.fromkeys([*owner.image_pull_secrets, *settings.image_pull_secrets])
    chosen: Object = {
        "imagePullSecrets": [{"name": name} for name in secrets],
        "runtimeClassName": settings.runtime_class_name,
        "priorityClassName": settings.priority_class_name,
        "nodeSelector": dict(settings.node_selector),
        "tolerations": list(settings.tolerations),
        "hostUsers": False if settings.user_namespaces else None,
    }
    return {
        "initContainers": [_install(settings)],
        "containers": [_sandbox(wanted, settings, token_sha256, ttl_s)],
        "volumes": [
            {"name": "daemon", "emptyDir": {"sizeLimit": _bytes(_OWN_DISK)}},
            {"name": "files", "emptyDir": {"sizeLimit": _bytes(wanted.limits.disk_bytes)}},
            *(
                {"name": name, "image": {"reference": image, "pullPolicy": settings.image_pull_policy}}
                for name, _, image in _images(wanted)
            ),
        ],
        "restartPolicy": "Never",
        "activeDeadlineSeconds": ttl_s,
        "terminationGracePeriodSeconds": _GRACE_S,
        "serviceAccountName": "default",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": SANDBOX,
        # A server that nobody is: Kubernetes wants one where there is to be none.
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **{name: part for name, part in chosen.items() if part not in (None, [], {})},
    }


def _install(settings: BrokerSettings) -> Object:
    few = {"cpu": "100m", "memory": "64Mi", "ephemeral-storage": _bytes(_OWN_DISK)}
    return {
        "name": INSTALL,
        "image": settings.daemon_image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["/daemon", "install", PROGRAM],
        "resources": {"requests": few, "limits": few},
        "volumeMounts": [{"name": "daemon", "mountPath": _folder(PROGRAM)}],
        "securityContext": _security(read_only=True),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _sandbox(wanted: Wanted, settings: BrokerSettings, token_sha256: str, ttl_s: int) -> Object:
    # What is asked for is what is given: nothing inside can take what the node's other pods count on.
    most = {
        "cpu": canonical(f"{math.ceil(wanted.limits.cpu * 1000)}m"),
        "memory": _bytes(wanted.limits.memory_bytes),
        "ephemeral-storage": _bytes(wanted.limits.disk_bytes + _OWN_DISK),
    }
    flags = {
        "--listen": f"0.0.0.0:{DAEMON_PORT}",
        "--token-sha256": token_sha256,
        "--workdir": wanted.workdir,
        "--ttl-s": str(ttl_s),
        "--files": FILES,
        "--processes": str(wanted.limits.processes),
    }
    return {
        "name": SANDBOX,
        "image": wanted.image,
        "imagePullPolicy": settings.image_pull_policy,
        # Kubernetes puts variables' values for $(NAME).
        "command": [PROGRAM, "serve", *(word.replace("$", "$$") for flag in flags.items() for word in flag)],
        # The image's may be missing; the daemon makes the one that commands run in.
        "workingDir": "/",
        "ports": [{"name": "daemon", "containerPort": DAEMON_PORT, "protocol": "TCP"}],
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": "daemon"},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        "resources": {"requests": most, "limits": most},
        "volumeMounts": [
            {"name": "daemon", "mountPath": _folder(PROGRAM), "readOnly": True},
            {"name": "files", "mountPath": FILES},
            *({"name": name, "mountPath": path, "readOnly": True} for name, path, _ in _images(wanted)),
        ],
        "securityContext": _security(read_only=False),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _images(wanted: Wanted) -> list[tuple[str, str, str]]:
    """Volumes that are images: name, where it is, which."""
    return [(f"volume-{number}", path, image) for number, (path, image) in enumerate(sorted(wanted.volumes.items()))]


def _security(*, read_only: bool) -> Mapping[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": read_only,
        "capabilities": {"drop": ["ALL"]},
    }


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _bytes(number: int) -> str:
    return canonical(f"{number // 1024}Ki" if number % 1024 == 0 else str(number))
