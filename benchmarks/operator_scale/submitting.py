"""Runs, and how they are created and edited: as many requests at a time as the operator has workers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.operator_scale.ground import CLAIM
from benchmarks.operator_scale.operating import WORKERS
from echorl_operator import names
from echorl_operator.kube.connection import Call, Connection
from echorl_operator.kube.credentials import from_kubeconfig
from echorl_operator.kube.resources import RUN
from echorl_operator.metrics import Metrics
from echorl_operator.observed.runs import RunKey


@dataclass(frozen=True)
class Shape:
    """Pods of a run: trainers, engines, and one orchestrator; prepare is gone by then."""

    trainers: int
    engines: int

    @property
    def pods(self) -> int:
        """That are ready in the end."""
        return self.trainers + self.engines + 1

    def manifest(self, key: RunKey) -> dict[str, Any]:
        """A run of GPU pods on the namespace's shared volume."""
        return {
            "apiVersion": RUN.api_version,
            "kind": RUN.kind,
            "metadata": {"name": key.name, "namespace": key.namespace},
            "spec": {
                "model": {"name": "/models/tiny", "renderer": "compact", "dtype": "bfloat16", "maxModelLen": 4096},
                "maxSteps": 200,
                "algorithm": {"groupSize": 8, "batchSize": 64, "maxStaleness": 1},
                "environments": {
                    "train": [{"name": "digits", "type": "builtin:digits"}],
                    "eval": [{"name": "digits-held-out", "type": "builtin:digits", "args": {"split": "test"}}],
                },
                "trainer": {"replicas": self.trainers, "gpusPerReplica": 1},
                "inference": {"replicas": self.engines, "gpusPerReplica": 1},
                "storage": {"claimName": CLAIM},
            },
        }


TWELVE = Shape(trainers=8, engines=3)
THREE = Shape(trainers=1, engines=1)


def namespaces(count: int) -> list[str]:
    """Names that all have the same length."""
    return [f"scale-{number:02d}" for number in range(count)]


def keys(first: int, count: int, where: Sequence[str]) -> list[RunKey]:
    """Runs, in turn over namespaces."""
    return [RunKey(where[number % len(where)], f"run-{number:04d}") for number in range(first, first + count)]


class Client:
    """The user's side, over the connection that the operator has too."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def create(self, runs: Sequence[RunKey], shape: Shape, created: Callable[[RunKey, str], None]) -> None:
        """Create runs; ``created`` gets each with its uid."""

        async def one(key: RunKey) -> None:
            call = Call("create", RUN.path(key.namespace), RUN.plural, body=shape.manifest(key))
            reply = msgspec.json.decode(await self.connection.request(call))
            created(key, reply["metadata"]["uid"])

        await at_once(runs, one)

    async def edit(self, runs: Sequence[RunKey], spec: dict[str, Any], edited: Callable[[RunKey, float], None]) -> None:
        """Edit runs; ``edited`` gets each with the monotonic time when the API server had taken the edit."""

        async def one(key: RunKey) -> None:
            call = Call("patch", RUN.path(key.namespace, key.name), RUN.plural, body={"spec": spec})
            await self.connection.request(call)
            edited(key, time.monotonic())

        await at_once(runs, one)

    async def phases(self) -> dict[RunKey, str]:
        """Of all runs, as their statuses say."""
        reply = await self.connection.request(Call("list", RUN.path(None), RUN.plural, {"resourceVersion": "0"}))
        found = msgspec.json.decode(reply)["items"]
        return {
            RunKey(item["metadata"]["namespace"], item["metadata"]["name"]): item.get("status", {}).get("phase", "")
            for item in found
        }

    async def add_foreign_pods(self, namespace: str, count: int) -> None:
        """Pods that are none of ours, and that nobody schedules."""

        async def one(number: int) -> None:
            await self.connection.request(
                Call("create", f"/api/v1/namespaces/{namespace}/pods", "pods", body=_foreign(f"foreign-{number:05d}"))
            )

        await at_once(range(count), one)


async def at_once(things: Iterable[Any], do: Callable[[Any], Any], workers: int = WORKERS) -> None:
    """Do something with each, ``workers`` at a time, in order."""
    left = iter(things)

    async def work() -> None:
        for thing in left:
            await do(thing)

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())


@asynccontextmanager
async def client(kubeconfig: Path) -> AsyncIterator[Client]:
    """As the admin."""
    async with Connection(from_kubeconfig(kubeconfig), Metrics()) as connection:
        yield Client(connection)


def _foreign(name: str) -> dict[str, Any]:
    labels = {"app": "foreign", names.LABEL_NAME: "something-else"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "example.test/x:1"}]},
    }
