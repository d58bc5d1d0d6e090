"""A namespace of a real control plane with an operator at work and played pods: what tests of the operator look at."""

import asyncio
import copy
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from echorl_operator import names
from echorl_operator.kube.credentials import from_kubeconfig
from echorl_operator.kube.lists import StreamSettings
from echorl_operator.metrics import Metrics
from echorl_operator.orchestrators.tokens import Tokens
from echorl_operator.process import Operator, Options, running
from echorl_operator.settings import Settings
from echorl_testing.cluster.api import Api
from echorl_testing.operator.scripted_cluster import ScriptedCluster, pretty

PATIENCE_S = 120.0
"""For what is not timed."""
SETTINGS = Settings(operator_version="0.1.0")
SPEC: dict[str, Any] = {
    "model": {"name": "/models/tiny", "renderer": "compact", "dtype": "float32", "maxModelLen": 256},
    "maxSteps": 20,
    "algorithm": {"groupSize": 4, "batchSize": 16, "maxStaleness": 1},
    "environments": {"train": [{"name": "digits", "type": "builtin:digits"}]},
    "trainer": {"replicas": 2, "gpusPerReplica": 0},
    "inference": {"replicas": 2, "gpusPerReplica": 0},
    "checkpoint": {"interval": 5},
    "failurePolicy": {"maxRestarts": 2, "backoffSeconds": 0},
}


class World:
    """One namespace with an operator at work and played pods."""

    def __init__(self, api: Api, namespace: str, cluster: ScriptedCluster, operator: Operator | None) -> None:
        self.api, self.namespace, self.cluster, self.operator = api, namespace, cluster, operator
        self.runs = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{namespace}/{names.PLURAL}"

    def create(self, name: str = "one", **changes: Any) -> None:
        spec = copy.deepcopy(SPEC) | changes
        self.api.create(
            self.runs,
            {
                "apiVersion": f"{names.GROUP}/{names.VERSION}",
                "kind": names.KIND,
                "metadata": {"name": name},
                "spec": spec,
            },
        )

    def run(self, name: str = "one") -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(f"{self.runs}/{name}")
        return found

    def status(self, name: str = "one") -> dict[str, Any]:
        status: dict[str, Any] = self.run(name).get("status", {})
        return status

    def condition(self, kind: str, name: str = "one") -> dict[str, Any]:
        found = [one for one in self.status(name).get("conditions", []) if one["type"] == kind]
        return found[0] if found else {}

    def pods(self, role: str | None = None) -> dict[str, dict[str, Any]]:
        items = self.api.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return {
            pod["metadata"]["name"]: pod
            for pod in items
            if role is None or pod["metadata"]["labels"].get(names.LABEL_ROLE) == role
        }

    def writes(self) -> float:
        """Writes of the operator so far."""
        return sum(one.value for one in self._requests() if one.labels["verb"] not in {"get", "list", "watch"})

    def requests(self, verb: str, resource: str) -> float:
        """Of the operator so far."""
        wanted = {"verb": verb, "resource": resource}
        return sum(one.value for one in self._requests() if wanted.items() <= one.labels.items())

    def _requests(self) -> list[Any]:
        assert self.operator is not None
        families = self.operator.metrics.api_requests.collect()
        return [sample for family in families for sample in family.samples if sample.name.endswith("_total")]

    def edit(self, spec: dict[str, Any], name: str = "one") -> None:
        self.api.patch(f"{self.runs}/{name}", {"spec": spec})

    async def until(self, what: str, question: Callable[[], Any], seconds: float = PATIENCE_S) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not await asyncio.to_thread(question):  # noqa: ASYNC110 - what is waited for is in the cluster
                    await asyncio.sleep(0.15)
        except TimeoutError:
            status = pretty(self.status()) if self.api.find(f"{self.runs}/one") else "no run"
            raise AssertionError(f"not within {seconds:.0f} s: {what}\n{status}\n{sorted(self.pods())}") from None

    async def phase(self, phase: str, attempt: int | None = None, seconds: float = PATIENCE_S) -> None:
        def reached() -> bool:
            status = self.status()
            return status.get("phase") == phase and attempt in (None, status.get("attempt"))

        await self.until(f"phase {phase}, attempt {attempt}", reached, seconds)


@asynccontextmanager
async def operating(
    kubeconfig: Path,
    namespace: str,
    *,
    lead: bool = False,
    instance: str = "test",
    streams: StreamSettings | None = None,
    settings: Settings = SETTINGS,
) -> AsyncIterator[Operator]:
    """An operator for one namespace; if a part of it fails, so does the block. ``streams``: its own by default."""
    credentials = from_kubeconfig(kubeconfig)
    await credentials.load()
    options = Options(instance=instance, lease_namespace=namespace, namespaces=[namespace], lead=lead, workers=2)
    options = options if streams is None else dataclasses.replace(options, streams=streams)
    tokens = Tokens(b"a master key of tests, long enough")
    async with running(options, settings, tokens, credentials, Metrics()) as (operator, task):
        yield operator
        if task.done():
            await task
