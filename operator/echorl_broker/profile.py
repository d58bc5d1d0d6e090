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
    pod_labels = {
        names.LABEL_NAME: names.APP_NAME,
        names.LABEL_MANAGED_BY: names.SANDBOXES_MANAGED_BY,
        names.LABEL_COMPONENT: names.SANDBOX,
        names.LABEL_ROLE: names.SANDBOX,
        names.LABEL_RUN: owner.run,
        names.LABEL_RUN_UID: owner.uid,
        names.LABEL_ATTEMPT: owner.attempt,
        labels.ORCHESTRATOR_UID: owner.orchestrator_uid,
    }
    if wanted.gateway:
        pod_labels[names.LABEL_GATEWAY] = "allowed"
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
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": pod_labels,
            "annotations": {
                **annotations,
                # A node that is let go would take the episode with it.
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            },
            "ownerReferences": [owner_reference(owner.run, owner.uid)],
        },
        "spec": _spec(owner, wanted, settings, token_sha256, lives_s),
    }


def shape_of(wanted: Wanted) -> str:
    """A short name for all that one sandbox is made by; of two that have the same either will do."""
    return labels.digest_of(msgspec.json.encode(wanted, order="sorted").decode())


def claim(meta: Meta, key: str, wanted: Wanted, *, now: float) -> Object:
    """What changes of a warm pod that becomes the sandbox ``key`` (a merge patch); its time begins.

    It is refused where anybody has changed the pod since it was read.
    """
    lives_s = math.ceil(now - meta.created_at) + math.ceil(wanted.ttl_s)
    return {
        "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "labels": {names.LABEL_WARM: None, names.LABEL_CLAIM: labels.digest_of(key)},
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
        ],
        "securityContext": _security(read_only=False),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


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
