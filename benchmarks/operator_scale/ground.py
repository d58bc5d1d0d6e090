"""Where everything is measured: a fresh control plane with large fake nodes, and namespaces with a volume each."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.operator_scale import played
from benchmarks.operator_scale.processes import cpu_seconds
from echorl_testing.cluster import cluster as clusters
from echorl_testing.cluster import nodes
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.processes import wait_for
from echorl_testing.kube.run_objects import install_crd

CLAIM = "shared"
_DEADLINE_S = 60.0
_PODS_PER_NODE = 1000


@dataclass(frozen=True)
class Ground:
    """One control plane."""

    cluster: Cluster
    folder: Path

    @property
    def api(self) -> Api:
        """Requests as the admin."""
        return self.cluster.api

    @property
    def kubeconfig(self) -> Path:
        """Of the admin."""
        return self.cluster.connection.kubeconfig

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time of each component so far."""
        return {name: cpu_seconds(one.process.pid) for name, one in self.cluster.components.items()}

    def add_namespaces(self, names: list[str]) -> None:
        """Namespaces that accept pods, each with a bound claim ``CLAIM``."""
        for name in names:
            self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
            self.api.create("/api/v1/persistentvolumes", _volume(name))
            self.api.create(f"/api/v1/namespaces/{name}/persistentvolumeclaims", _claim(name))
        for name in names:
            base = f"/api/v1/namespaces/{name}"
            account = f"{base}/serviceaccounts/default"
            wait_for(f"{account} exists", partial(self._exists, account), seconds=_DEADLINE_S)
            claim = f"{base}/persistentvolumeclaims/{CLAIM}"
            wait_for(f"{claim} is bound", partial(self._bound, claim), seconds=_DEADLINE_S)

    def _exists(self, path: str) -> bool:
        return self.api.find(path) is not None

    def _bound(self, path: str) -> bool:
        return bool(self.api.get(path).get("status", {}).get("phase") == "Bound")

    def add_nodes(self, pods: int) -> None:
        """Fake nodes with GPUs and room for so many pods, and one without GPUs for as many."""
        wanted = [_large(nodes.gpu_node(f"gpu-{index}")) for index in range(2 + pods // _PODS_PER_NODE)]
        wanted += [_large(nodes.cpu_node(f"cpu-{index}")) for index in range(2 + pods // (2 * _PODS_PER_NODE))]
        for node in wanted:
            self.api.create("/api/v1/nodes", node)
        wait_for("nodes are ready", self._nodes_ready, seconds=_DEADLINE_S)

    def _nodes_ready(self) -> bool:
        return all(nodes.is_ready(node) for node in self.api.get("/api/v1/nodes")["items"])


def _large(node: dict[str, Any]) -> dict[str, Any]:
    room = {"cpu": "16384", "memory": "65536Gi", "ephemeral-storage": "1048576Gi", "pods": str(2 * _PODS_PER_NODE)}
    for field in ("capacity", "allocatable"):
        resources = node["status"][field]
        resources |= room
        if nodes.GPU_RESOURCE in resources:
            resources[nodes.GPU_RESOURCE] = str(2 * _PODS_PER_NODE)
    return node


def _volume(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": namespace},
        "spec": {
            "capacity": {"storage": "1Ti"},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "claimRef": {"namespace": namespace, "name": CLAIM},
            "nfs": {"server": "198.18.255.1", "path": "/"},
        },
    }


def _claim(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": namespace,
            "resources": {"requests": {"storage": "1Ti"}},
        },
    }


@asynccontextmanager
async def ground(namespaces: list[str], pods: int) -> AsyncIterator[Ground]:
    """A control plane with room for ``pods``; nothing is left of it afterwards."""
    with tempfile.TemporaryDirectory(prefix="echorl-scale-") as name:
        folder = Path(name)
        stages = folder / "stages.yaml"
        stages.write_text(played.stages())
        # Tethered to this thread, so not in another one.
        cluster = clusters.start(tethered=True, kwok_arguments=[f"--config={stages}"])
        try:
            made = Ground(cluster, folder)
            await asyncio.to_thread(_furnish, made, namespaces, pods)
            yield made
        finally:
            await asyncio.to_thread(cluster.stop)


def _furnish(made: Ground, namespaces: list[str], pods: int) -> None:
    install_crd(made.api)
    made.add_nodes(pods)
    made.add_namespaces(namespaces)
