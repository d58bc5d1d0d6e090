"""Node objects: fake ones, which kwok keeps ready and whose pods run in words only; and their removal."""

from collections.abc import Iterable
from typing import Any

from echorl_testing.cluster.api import Api
from echorl_testing.cluster.control_plane import FAKE_NODE_ANNOTATION

GPU_RESOURCE = "nvidia.com/gpu"
FAKE_LABEL = "echorl.dev/fake-node"
"""On every fake node; its value is ``gpu`` or ``cpu``."""


def gpu_node(name: str, *, gpus: int = 8) -> dict[str, Any]:
    """A node with GPUs; tainted, so that only pods that ask for GPUs come to it."""
    node = cpu_node(name)
    node["metadata"]["labels"] |= {FAKE_LABEL: "gpu", "nvidia.com/gpu.present": "true"}
    node["spec"] = {"taints": [{"key": GPU_RESOURCE, "value": "present", "effect": "NoSchedule"}]}
    for field in ("capacity", "allocatable"):
        node["status"][field][GPU_RESOURCE] = str(gpus)
    return node


def cpu_node(name: str) -> dict[str, Any]:
    """A large node without GPUs and without a taint."""
    resources = {"cpu": "128", "memory": "2048Gi", "ephemeral-storage": "8192Gi", "pods": "250"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                FAKE_LABEL: "cpu",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            },
            "annotations": {FAKE_NODE_ANNOTATION: "fake"},
        },
        "status": {"capacity": dict(resources), "allocatable": dict(resources)},
    }


def is_ready(thing: dict[str, Any]) -> bool:
    """Whether a node's or a pod's condition ``Ready`` is true."""
    conditions = thing.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def remove(api: Api, names: Iterable[str]) -> None:
    """Delete nodes, and without grace the pods that were bound to them."""
    for name in names:
        api.delete(f"/api/v1/nodes/{name}")
        for pod in api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={name}")["items"]:
            meta = pod["metadata"]
            api.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", grace_s=0)
