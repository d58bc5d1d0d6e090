"""The operator's I/O layer on a real API server, with the fault proxy in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echorl_operator import names
from echorl_operator.kube import credentials
from echorl_operator.kube.cache import Cache
from echorl_operator.kube.connection import Connection
from echorl_operator.kube.lists import StreamSettings
from echorl_operator.kube.writer import Writer
from echorl_operator.metrics import Metrics
from echorl_operator.observed.runs import RunKey
from echorl_testing.kube.fault_proxy import FaultProxy, Upstream

BRISK = StreamSettings(watch_s=4.0, silence_s=2.0, first_wait_s=0.05, longest_wait_s=1.0)
SYNCED_S = 120.0
RUN_UID = "run-uid"
LABELS = {names.LABEL_RUN: "r", names.LABEL_RUN_UID: RUN_UID, names.LABEL_MANAGED_BY: names.MANAGED_BY}


@dataclass
class Io:
    """All parts; the cache has listed everything."""

    proxy: FaultProxy
    link: Connection
    cache: Cache
    writer: Writer
    metrics: Metrics
    changes: list[RunKey]


@asynccontextmanager
async def opened(kubeconfig: Path, namespace: str, folder: Path) -> AsyncIterator[Io]:
    """Watch one namespace of the cluster of ``kubeconfig``; ``folder`` gets the kubeconfig that leads to the proxy."""
    metrics, changes = Metrics(), list[RunKey]()
    async with FaultProxy(await Upstream.from_kubeconfig(kubeconfig)) as proxy:
        path = proxy.write_kubeconfig(folder / "through-proxy")
        async with Connection(credentials.from_kubeconfig(path), metrics) as link:
            cache = Cache(link, [namespace], on_change=changes.append, metrics=metrics, settings=BRISK)
            running = asyncio.ensure_future(cache.run())
            await cache.wait_synced(SYNCED_S)
            writer = Writer(link, cache, may_write=lambda: True)
            try:
                yield Io(proxy, link, cache, writer, metrics, changes)
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running


def config_map(name: str, **data: str) -> dict[str, Any]:
    """A child."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": LABELS}, "data": data}


def gated_pod(name: str, *gates: str) -> dict[str, Any]:
    """A pod that waits for nobody but its gates, and for a node."""
    spec = {
        "containers": [{"name": "main", "image": "example.test/x:1"}],
        "schedulingGates": [{"name": gate} for gate in gates],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": LABELS}, "spec": spec}
