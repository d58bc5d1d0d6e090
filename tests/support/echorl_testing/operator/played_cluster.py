"""Kubelets played by what a history tells, so that many namespaces cost no polling.

Pods have no node unless a test names one: then they end only when their kubelet says so, and the kubelet of a lost node
says nothing more.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Never

from echorl_core.termination_message import TerminationMessage
from echorl_operator import names
from echorl_testing.cluster.api import STRATEGIC_MERGE_PATCH, Api, ApiError
from echorl_testing.kube.watch_history import Change, History, Object
from echorl_testing.operator.scripted_cluster import ScriptedCluster


class PlayedCluster(ScriptedCluster):
    """One namespace's pods, played at once when something changes."""

    def __init__(self, api: Api, history: History, namespace: str) -> None:
        super().__init__(api, namespace)
        self._history, self._namespace = history, namespace
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._changed: asyncio.Queue[str] = asyncio.Queue()
        self.node_of: Callable[[Object], str | None] = lambda _: None
        """Node that a pod is bound to before it starts; None: it needs none."""
        self.lost: set[str] = set()
        """Nodes whose kubelets are silent."""
        self.task: asyncio.Task[Never] | None = None

    async def play(self) -> Never:
        """Play until cancelled."""
        self._history.listen(self._namespace, self._note)
        while True:
            name = await self._changed.get()
            pod = self._history.get(self._namespace, "Pod", name)
            if pod is not None:
                await self._see(pod)

    def check(self) -> None:
        """Fail if the play has ended."""
        if self.task is not None and self.task.done():
            self.task.result()

    def look_again(self) -> None:
        """A test lets pods start that it held."""
        for pod in self._history.living(self._namespace, "Pod"):
            self._changed.put_nowait(pod["metadata"]["name"])

    def _note(self, change: Change, _: Object) -> None:
        if change.kind == "Pod" and change.type != "DELETED":
            self._changed.put_nowait(change.name)

    async def _see(self, pod: Object) -> None:
        metadata, node = pod["metadata"], pod["spec"].get("nodeName")
        if node in self.lost:
            return
        if "deletionTimestamp" in metadata:
            if node is not None:
                await self._history.api.delete(f"{self._path}/{metadata['name']}", grace_s=0)
            return
        if self._starts(pod) and node is None and (chosen := self.node_of(pod)) is not None:
            await self._bind(metadata["name"], chosen)
        await self._look_at(pod)

    def _starts(self, pod: Object) -> bool:
        role = (pod["metadata"].get("labels") or {}).get(names.LABEL_ROLE)
        return role is not None and role not in self.held and not pod["spec"].get("schedulingGates")

    async def _bind(self, name: str, node: str) -> None:
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"name": node}}
        try:
            await self._history.api.create(f"{self._path}/{name}/binding", binding)
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    async def end(self, name: str, code: int, words: TerminationMessage | None = None) -> None:
        """A pod's process ends with ``code``."""
        pod = self._history.get(self._namespace, "Pod", name)
        assert pod is not None, f"no pod {name} in {self._namespace}"
        await self._ended(name, pod["metadata"]["labels"][names.LABEL_ROLE], code, words)

    async def _set_status(self, name: str, status: dict[str, Any]) -> None:
        try:
            await self._history.api.patch(
                f"{self._path}/{name}/status", {"status": status}, content_type=STRATEGIC_MERGE_PATCH
            )
        except ApiError as error:
            if error.code != 404:
                raise


@asynccontextmanager
async def played(api: Api, history: History, namespace: str) -> AsyncIterator[PlayedCluster]:
    """A played namespace; a failure of the play fails the block."""
    cluster = PlayedCluster(api, history, namespace)
    task = cluster.task = asyncio.create_task(cluster.play(), name=f"play of {namespace}")
    try:
        yield cluster
        if task.done():
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await cluster.close()
