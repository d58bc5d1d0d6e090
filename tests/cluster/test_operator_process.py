"""The operator as a process: it starts although the API server is down; its metrics are right while a run is played."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from echorl_core.termination_message import message_of_end
from echorl_testing.campaign import campaign_params
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.credentials import Connection
from echorl_testing.kube import faults
from echorl_testing.kube.fault_proxy import FaultProxy, Upstream
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.operator.operator_process import operator_pod
from echorl_testing.operator.operator_world import World
from echorl_testing.operator.scripted_cluster import prepared, scripted
from echorl_testing.ports import free_ports
from echorl_testing.scrape import Scrape, asked, scrape

pytestmark = pytest.mark.timeout(600)

PATIENCE_S = 120.0
TRIES = 12
SETTINGS = {"operatorVersion": "0.1.0"}
GPUS = 5
"""Of a run with ``ON_GPUS``."""
ON_GPUS = {"trainer": {"replicas": 2, "gpusPerReplica": 2}, "inference": {"replicas": 1, "gpusPerReplica": 1}}


FAULTS: dict[str, Callable[[], faults.Fault]] = {
    "connections are dropped": faults.drop,
    "503": lambda: faults.fail(503),
    "401": lambda: faults.fail(401),
}


@pytest.mark.parametrize("fault", campaign_params("starts while the API server is down", list(FAULTS), 1))
async def test_it_starts_while_the_api_server_is_down(
    fault: str, api: Api, connection: Connection, namespace: str, tmp_path: Path
) -> None:
    install_crd(api)
    probes, metrics = free_ports(2)
    ports = ("--probe-port", str(probes), "--metrics-port", str(metrics))
    async with (
        FaultProxy(await Upstream.from_kubeconfig(connection.kubeconfig)) as proxy,
        scripted(api, namespace) as cluster,
    ):
        world = World(api, namespace, cluster, None)
        world.create()
        kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")
        with (
            proxy.fault(FAULTS[fault]()) as down,
            operator_pod(kubeconfig, namespace, tmp_path, SETTINGS, *ports) as ends,
        ):
            await world.until("it is alive", lambda: asked(probes, "/healthz")[0] == 200, PATIENCE_S)
            await world.until("it has tried again and again", lambda: down.hits > TRIES * 10, PATIENCE_S)
            assert asked(probes, "/healthz")[0] == 200
            assert asked(metrics, "/readyz")[0] == 503
            assert ends == []
            proxy.remove(down)
            await world.until("it is ready", lambda: asked(metrics, "/readyz")[0] == 200, PATIENCE_S)
            await world.phase("Running", seconds=PATIENCE_S)


async def test_metrics_of_a_run(api: Api, connection: Connection, namespace: str, tmp_path: Path) -> None:
    install_crd(api)
    probes, port, other_probes, other_port = free_ports(4)
    leader = ("--probe-port", str(probes), "--metrics-port", str(port))
    reserve = ("--probe-port", str(other_probes), "--metrics-port", str(other_port))
    began = time.time()
    async with scripted(api, namespace) as cluster:
        world = World(api, namespace, cluster, None)
        with operator_pod(connection.kubeconfig, namespace, tmp_path, SETTINGS, *leader) as ends:
            await world.until(
                "it leads", lambda: asked(port, "/metrics")[0] and scrape(port).value("leader"), PATIENCE_S
            )
            (tmp_path / "reserve").mkdir()
            with operator_pod(connection.kubeconfig, namespace, tmp_path / "reserve", SETTINGS, *reserve):
                await is_ready(world, other_port)
                await play(world)
                assert ends == [], "it lost its lease, and counts from 0"
                check_counts(scrape(port), time.time() - began)
                await check_gpus(port)
                assert scrape(other_port).value("leader") == 0
                assert not scrape(other_port).labels("runs", "phase")
                assert not scrape(other_port).labels("gpu_seconds_total", "state")
            world.api.delete(f"{world.runs}/one")
            await world.until("no run is shown", lambda: not scrape(port).value("runs", phase="Running"), PATIENCE_S)
            assert not scrape(port).labels("checkpoint_age_seconds", "run")


async def is_ready(world: World, port: int) -> None:
    await world.until("it is ready", lambda: asked(port, "/readyz")[0] == 200, PATIENCE_S)


async def play(world: World) -> None:
    """Seven steps, a checkpoint of step 5, a rank that is killed, step 8."""
    world.create(**ON_GPUS)
    await world.phase("Running", attempt=1, seconds=PATIENCE_S)
    committed = (datetime.now(UTC) - timedelta(seconds=100)).strftime("%Y-%m-%dT%H:%M:%SZ")
    checkpoint = {"step": 5, "committed_at": committed, "size_bytes": 9}
    world.cluster.orchestrators["one"].say(step=7, checkpoint=checkpoint)
    await world.until("step 7 is in status", lambda: world.status().get("step") == 7, PATIENCE_S)
    world.cluster.prepare = lambda attempt: prepared(attempt, resume_step=5)
    await world.cluster.end("one-trainer-1", 137, message_of_end("trainer", 137, "", attempt=1))
    await world.phase("Running", attempt=2, seconds=PATIENCE_S)
    world.cluster.orchestrators["one"].say(step=8, checkpoint=checkpoint)
    await world.until("step 8 is in status", lambda: world.status().get("step") == 8, PATIENCE_S)
    await world.until("all are ready", lambda: ready(world) == 4, PATIENCE_S)


def ready(world: World) -> int:
    return sum(role["ready"] for role in world.status()["roles"].values())


def check_counts(found: Scrape, seconds: float) -> None:
    assert found.value("runs", phase="Running") == 1
    assert sum(value for (name, _), value in found.series.items() if name == "echorl_operator_runs") == 1
    assert found.value("restarts_total", role="trainer", cause="Signalled") == 1
    assert found.value("lost_steps_count") == 1
    assert found.value("lost_steps_sum") == 7 - 5
    assert found.value("first_step_seconds_count") == 1
    assert 0 < found.value("first_step_seconds_sum") < seconds
    assert found.labels("checkpoint_age_seconds", "run") == {"one"}
    (age,) = [value for (name, _), value in found.series.items() if name.endswith("checkpoint_age_seconds")]
    assert 100 <= age < 100 + seconds
    assert found.value("queue_depth") <= 1
    assert found.value("reconciles_total", result="ok") > 10
    watched = {"echorlruns", "pods", "statefulsets", "deployments", "controllerrevisions", "configmaps", "services"}
    assert watched <= found.labels("watch_age_seconds", "resource")
    total = sum(value for (name, _), value in found.series.items() if name.endswith("gpu_seconds_total"))
    assert 0 < total < GPUS * seconds
    for state in ("restarting", "useful"):
        assert found.value("gpu_seconds_total", role="trainer", state=state) > 0, state
    at_first = [found.value("gpu_seconds_total", role="inference", state=state) for state in ("waiting", "starting")]
    assert sum(at_first) > 0, "no node, then not ready: how long each lasts, the play decides"


async def check_gpus(port: int) -> None:
    """While a run goes on, each of its GPUs is useful for a second a second."""
    before = time.time()
    first = await asyncio.to_thread(useful, port)
    between = time.time()
    async with asyncio.timeout(PATIENCE_S):
        while time.time() < between + 3:  # noqa: ASYNC110 - what is measured is time
            await asyncio.sleep(0.2)
    after = time.time()
    gained = await asyncio.to_thread(useful, port) - first
    assert GPUS * (after - between) - 0.01 <= gained <= GPUS * (time.time() - before) + 0.01


def useful(port: int) -> float:
    found = scrape(port)
    return sum(found.value("gpu_seconds_total", role=role, state="useful") for role in ("trainer", "inference"))
