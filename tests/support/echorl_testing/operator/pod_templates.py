"""Templates of roles in manifests: each that is refused has one thing wrong with it."""

from typing import Any

from echorl_operator import names

_CONTAINER = {"name": "trainer"}
REFUSED: dict[str, dict[str, Any]] = {
    "service account": {"spec": {"serviceAccountName": "default"}},
    "token": {"spec": {"automountServiceAccountToken": True}},
    "host network": {"spec": {"hostNetwork": True}},
    "host PID": {"spec": {"hostPID": True}},
    "host IPC": {"spec": {"hostIPC": True}},
    "restart policy": {"spec": {"restartPolicy": "Always"}},
    "gates": {"spec": {"schedulingGates": []}},
    "hostname": {"spec": {"hostname": "x"}},
    "subdomain": {"spec": {"subdomain": "x"}},
    "node": {"spec": {"nodeName": "x"}},
    "hostPath": {"spec": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}},
    "nfs": {"spec": {"volumes": [{"name": "x", "nfs": {"server": "x", "path": "/"}}]}},
    "projected token": {
        "spec": {"volumes": [{"name": "x", "projected": {"sources": [{"serviceAccountToken": {"path": "x"}}]}}]}
    },
    "privileged": {"spec": {"containers": [{**_CONTAINER, "securityContext": {"privileged": True}}]}},
    "privileged init": {"spec": {"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]}},
    "escalation": {"spec": {"containers": [{**_CONTAINER, "securityContext": {"allowPrivilegeEscalation": True}}]}},
    "root": {"spec": {"securityContext": {"runAsUser": 0}}},
    "no user": {"spec": {"containers": [{**_CONTAINER, "securityContext": {"runAsNonRoot": False}}]}},
    "seccomp": {"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}},
    "capability": {
        "spec": {"containers": [{**_CONTAINER, "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]}
    },
    "host port": {"spec": {"containers": [{**_CONTAINER, "ports": [{"containerPort": 80, "hostPort": 80}]}]}},
    "container restart": {"spec": {"containers": [{**_CONTAINER, "restartPolicy": "Always"}]}},
    "our label": {"metadata": {"labels": {names.LABEL_ROLE: "agent"}}},
    "our annotation": {"metadata": {"annotations": {names.ANNOTATION_HASH: "x"}}},
}
REFUSED_AT_LENGTH: dict[str, dict[str, Any]] = {
    "two fields": {"spec": {"hostNetwork": True, "hostPID": True}},
    "a long value": {"spec": {"nodeName": "n" * 500}},
    "a list": {"spec": {"schedulingGates": [{"name": "x"}]}},
    "a second container": {"spec": {"containers": [_CONTAINER, {"name": "x", "securityContext": {"runAsUser": 0}}]}},
    "a mapping": {"spec": {"containers": [{**_CONTAINER, "securityContext": {"procMount": {}}}]}},
}
"""Refused too; the message counts."""
ACCEPTED: dict[str, dict[str, Any]] = {
    "usual": {
        "metadata": {"labels": {"team": "ml"}, "annotations": {"example.org/x": "y"}},
        "spec": {
            "nodeSelector": {"gpu": "h100"},
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "containers": [
                {
                    **_CONTAINER,
                    "env": [{"name": "X", "value": "1"}],
                    "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                    "ports": [{"containerPort": 9000}],
                },
                {"name": "sidecar", "image": "x"},
            ],
        },
    },
    "nothing": {},
    "nulls": {"metadata": None, "spec": {"hostNetwork": None, "volumes": None, "containers": None}},
}
