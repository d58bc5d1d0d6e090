"""Queue, breaker, workers and I/O put together around the smallest reconciler there is, on a real API server."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from echorl_operator import names
from echorl_operator.kube import credentials
from echorl_operator.kube.cache import Cache
from echorl_operator.kube.connection import Call, Connection
from echorl_operator.kube.resources import RUN
from echorl_operator.kube.writer import Writer
from echorl_operator.metrics import Metrics
from echorl_operator.observed.records import Kind
from echorl_operator.observed.runs import RunKey
from echorl_operator.plan.drift import needs_apply
from echorl_operator.reconcile.breaker import Breaker
from echorl_operator.reconcile.queue import QueueSettings, WorkQueue
from echorl_operator.reconcile.workers import Workers, WorkerSettings
from echorl_operator.watchdog import Vitals, Watchdog
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.credentials import Connection as ClusterConnection
from echorl_testing.kube import faults
from echorl_testing.kube.fault_proxy import FaultProxy, Upstream
from echorl_testing.kube.run_objects import Runs, install_crd, wait_until_served
from echorl_testing.load import stretched
from echorl_testing.operator.lives_together import Together
from echorl_testing.operator.operator_io import BRISK, SYNCED_S
from echorl_testing.operator.rendered import manifest
from echorl_testing.waiting import until

AGENT = "echorl-operator/"
RECOVERED_S = 30.0
"""From the end of an outage, on a machine that keeps up."""
PATIENCE_S = 90.0


class Miniature:
    """Keeps one ConfigMap a run with the run's generation in it, and says so in status."""

    def __init__(self, link: Connection, namespace: str) -> None:
        self.link, self.metrics = link, Metrics()
        self.queue = WorkQueue(self.metrics, QueueSettings())
        self.breaker = Breaker(
            self._probe, on_open=self.queue.pause, on_close=self._again, metrics=self.metrics, interval_s=0.5
        )
        self.cache = Cache(
            link,
            [namespace],
            on_change=self.queue.add,
            metrics=self.metrics,
            settings=BRISK,
            on_failure=self.breaker.suspect,
        )
        self.writer = Writer(link, self.cache, may_write=lambda: True, timeout_s=3)
        self.workers = Workers(self.queue, self.breaker, self.reconcile, self.metrics, WorkerSettings(workers=2))
        vitals = Vitals(
            streams=lambda: self.cache.streams,
            synced=lambda: self.cache.synced,
            api_down=lambda: self.breaker.open,
            reachable_since=lambda: self.breaker.reachable_since,
            longest_pass_s=self.queue.longest_running,
            election_round=lambda: None,
        )
        self.watchdog = Watchdog(vitals)
        self._namespace = namespace

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.cache.run())
            group.create_task(self.breaker.run())
            await self.cache.wait_synced(SYNCED_S)
            group.create_task(self.workers.run())

    async def _probe(self) -> None:
        query = {"limit": "1", "resourceVersion": "0"}
        await self.link.request(Call("list", RUN.path(self._namespace), RUN.plural, query, timeout_s=2))

    def _again(self) -> None:
        self.queue.add_all(run.key for run in self.cache.runs)
        self.queue.resume()

    async def reconcile(self, key: RunKey) -> float | None:
        run = self.cache.runs.get(key.namespace, key.name)
        if run is None:
            return None
        desired = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": key.name,
                "labels": {
                    names.LABEL_RUN: key.name,
                    names.LABEL_RUN_UID: run.uid,
                    names.LABEL_MANAGED_BY: names.MANAGED_BY,
                },
            },
            "data": {"generation": str(run.generation)},
        }
        child = self.cache.children[Kind.CONFIG_MAP].get(key.namespace, key.name)
        if child is None or needs_apply(desired, child.body):
            await self.writer.apply(key.namespace, desired)
        status = {"phase": "Running", "observedGeneration": run.generation}
        if run.status != status:
            await self.writer.write_status(run, status)
        return None


class Place:
    """One run and what became of it."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self.document = api, manifest("quickstart")
        self.name = self.document["metadata"]["name"]
        self._runs = Runs(api, namespace)
        self._runs.created(self.document)
        self._maps = f"/api/v1/namespaces/{namespace}/configmaps"

    def edit(self) -> int:
        """Change the spec; returns the new generation."""
        self.document["spec"]["maxSteps"] += 1
        return int(self._runs.replaced(self.document, dry_run=False)["metadata"]["generation"])

    async def settles(self, generation: int, seconds: float = PATIENCE_S) -> None:
        """Return once child and status are right."""
        async with asyncio.timeout(seconds):
            while not await asyncio.to_thread(self._settled, generation):  # noqa: ASYNC110 - it is in the cluster
                await asyncio.sleep(0.1)

    def _settled(self, generation: int) -> bool:
        child = self._api.find(f"{self._maps}/{self.name}")
        status = self._api.get(f"{self._runs.path}/{self.name}").get("status", {})
        return (child or {}).get("data") == {"generation": str(generation)} and status == {
            "phase": "Running",
            "observedGeneration": generation,
        }

    def remove_child(self) -> None:
        self._api.delete(f"{self._maps}/{self.name}")


@dataclass(frozen=True)
class Stage:
    """What a test looks at."""

    operator: Miniature
    place: Place
    proxy: FaultProxy


@asynccontextmanager
async def staged(api: Api, connection: ClusterConnection, namespace: str) -> AsyncIterator[Stage]:
    """A miniature at work, behind a proxy, and a run."""
    async with FaultProxy(await Upstream.from_kubeconfig(connection.kubeconfig)) as proxy:
        with TemporaryDirectory() as folder:
            found = credentials.from_kubeconfig(proxy.write_kubeconfig(Path(folder) / "kubeconfig"))
            async with Connection(found, Metrics()) as link:
                operator = Miniature(link, namespace)
                running = asyncio.ensure_future(operator.run())
                try:
                    yield Stage(operator, await asyncio.to_thread(Place, api, namespace), proxy)
                    assert not running.done(), "no task has ended"
                finally:
                    running.cancel()
                    with suppress(asyncio.CancelledError):
                        await running


def made(proxy: FaultProxy) -> list[tuple[str, str]]:
    """Verb and resource of every write; one that had no reply in time counts once with its repetition."""
    found: list[tuple[str, str]] = []
    unanswered = False
    for one in proxy.writes_by(AGENT):
        write = (one.request.verb, one.request.resource)
        if not (unanswered and found[-1] == write):
            found.append(write)
        unanswered = one.status is None
    return found


together = Together(staged, at_once=8)


@together
async def test_a_run_settles_and_then_nothing_is_written(stage: Stage) -> None:
    place, proxy = stage.place, stage.proxy
    await place.settles(1)
    settled = [("apply", "configmaps"), ("update", "echorlruns")]
    assert made(proxy) == settled
    watches = len(proxy.running_watches)
    seen = sum(one.request.verb == "watch" for one in proxy.records)
    await until(lambda: sum(one.request.verb == "watch" for one in proxy.records) >= seen + watches)
    assert made(proxy) == settled
    generation = place.edit()
    await place.settles(generation)
    place.remove_child()
    await place.settles(generation)
    assert made(proxy) == [*settled, *settled, ("apply", "configmaps")]


OUTAGES: dict[str, Callable[[], faults.Fault]] = {
    "500": lambda: faults.fail(500),
    "503": lambda: faults.fail(503),
    "403": lambda: faults.fail(403),
    "401": lambda: faults.fail(401),
    "429": lambda: faults.throttle(1),
    "dropped connections": faults.drop,
    "hung requests": faults.hang,
    "500 for writes": lambda: faults.fail(500, faults.writes),
    "403 for writes": lambda: faults.fail(403, faults.writes),
    "409 for applies": faults.conflict,
    "writes happen, replies are lost": lambda: faults.drop(faults.writes, after=True),
    "watches expire": faults.expire,
    "watches fail": lambda: faults.stream_error(500),
    "watches are silent": faults.silence,
    "watches are behind": lambda: faults.delay(2),
}


@together.each(sorted(OUTAGES))
async def test_recovers_from_an_outage(stage: Stage, name: str) -> None:
    operator, place, proxy = stage.operator, stage.place, stage.proxy
    await place.settles(1)
    before = len(proxy.writes_by(AGENT))
    started = asyncio.get_running_loop().time()
    with proxy.fault(OUTAGES[name]()) as outage:
        proxy.end_watches()
        generation = place.edit()
        place.remove_child()
        await until(lambda: outage.hits >= 1 and asyncio.get_running_loop().time() - started > 6)
        assert operator.watchdog.not_alive() is None
    await place.settles(generation, stretched(RECOVERED_S))
    assert len(proxy.writes_by(AGENT)) - before < 60, "writes are bounded"
    await until(lambda: operator.watchdog.not_ready() is None)


@together
async def test_an_outage_costs_probes_and_no_writes(stage: Stage) -> None:
    operator, place, proxy = stage.operator, stage.place, stage.proxy
    await place.settles(1)
    with proxy.fault(faults.fail(500)):
        place.edit()
        proxy.end_watches()
        await until(lambda: operator.breaker.open)
        before = len(proxy.writes_by(AGENT))
        generation = place.edit()
        probes = sum(one.request.query.get("limit") == "1" for one in proxy.records)
        await until(lambda: sum(one.request.query.get("limit") == "1" for one in proxy.records) >= probes + 3)
        assert len(proxy.writes_by(AGENT)) == before
        assert operator.watchdog.not_ready() == "the API server does not answer"
    await place.settles(generation)


@together
async def test_every_write_may_fail_before_or_after_it_happened(stage: Stage) -> None:
    place, proxy = stage.place, stage.proxy
    await place.settles(1)
    for after in (False, True):
        for nth in (1, 2):
            with proxy.fault(faults.drop(faults.writes, after=after, nth=nth)) as fault:
                generation = place.edit()
                await place.settles(generation)
                assert fault.hits == 1


def thaw(control_plane: Cluster) -> None:
    """Let a frozen API server go on, and nsenter, its parent, which froze itself with its child."""
    pid = control_plane.components["kube-apiserver"].process.pid
    parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    control_plane.stop_component("kube-apiserver", number=signal.SIGCONT)
    os.kill(parent, signal.SIGCONT)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_an_api_server_that_dies_or_freezes(
    control_plane: Cluster, api: Api, connection: ClusterConnection, namespace: str, how: signal.Signals
) -> None:
    install_crd(api)
    async with staged(api, connection, namespace) as stage:
        operator, place = stage.operator, stage.place
        await place.settles(1)
        await asyncio.to_thread(control_plane.stop_component, "kube-apiserver", number=how)
        try:
            await until(lambda: operator.breaker.open)
            assert operator.watchdog.not_alive() is None
        finally:
            if how is signal.SIGSTOP:
                thaw(control_plane)
            await asyncio.to_thread(control_plane.ensure_control_plane)
            await asyncio.to_thread(wait_until_served, api)
        generation = await asyncio.to_thread(place.edit)
        await place.settles(generation, stretched(RECOVERED_S))
        assert json.dumps(operator.watchdog.not_alive()) == "null"
