"""What a run's status, and ``echorl why``, say of its sandboxes' pods: real API server, scheduler and operator."""

import asyncio
import sys
from typing import Any

import pytest

from echorl_broker import profile
from echorl_broker.settings import BrokerSettings
from echorl_core.wire.sandboxes import Limits, Wanted
from echorl_operator.settings import Settings
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.credentials import Connection
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.operator.operator_world import World, operating
from echorl_testing.operator.scripted_cluster import scripted

pytestmark = pytest.mark.timeout(400)

SETTINGS = Settings(operator_version="0.1.0", broker_url="http://echorl-broker.echorl-system.svc:8090")
OF_BROKER = BrokerSettings(daemon_image="echorl/sandbox-daemon:test", node_selector={"for": "sandboxes"})
LIMITS = Limits(cpu=0.5, memory_bytes=64 << 20, disk_bytes=64 << 20)
QUOTA = {"why": "quota", "count": 4, "reason": "exceeded quota: few: 1 pods wanted, 2 used of 2"}


def make_sandbox(world: World, key: str) -> str:
    """Make the pod of a sandbox, as the broker does; its name."""
    run = world.run()["metadata"]
    owner = profile.Owner(world.namespace, run["name"], run["uid"], "1", "uid-of-the-orchestrator")
    wanted = Wanted(run_uid=run["uid"], image="x:1", workdir="/task", limits=LIMITS, ttl_s=300.0)
    body = profile.sandbox_pod(owner, key, wanted, OF_BROKER, nonce="n", token_sha256="0" * 64)
    name: str = world.api.create(f"/api/v1/namespaces/{world.namespace}/pods", body)["metadata"]["name"]
    return name


def told(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.status().get("sandboxes", {})
    return {**found, "waiting": {one["reason"]: one for one in found.get("waiting", [])}}


async def why(connection: Connection, namespace: str) -> str:
    command = [sys.executable, "-m", "echorl_cli", "why", "one", "-n", namespace]
    process = await asyncio.create_subprocess_exec(
        *command, "--kubeconfig", str(connection.kubeconfig), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return said.decode()


async def test_sandboxes_are_counted_with_what_keeps_them(api: Api, connection: Connection, namespace: str) -> None:
    install_crd(api)
    operator = operating(connection.kubeconfig, namespace, settings=SETTINGS)
    async with scripted(api, namespace) as cluster, operator:
        world = World(api, namespace, cluster, None)
        cluster.held.add("sandbox")
        world.create(sandboxes={"provider": "pod"})
        await world.phase("Running")
        first, _ = make_sandbox(world, "a"), make_sandbox(world, "b")

        def both_wait() -> bool:
            return told(world)["waiting"].get("Unschedulable", {}).get("count") == 2

        await world.until("both wait for a node", both_wait)
        played = cluster.orchestrators["one"]
        played.say(sandboxes={"waiting": [QUOTA], "lost": {"evicted": 2}})
        spent = {
            "trainer": {"useful": 30.4, "undecided": 7.0},
            "inference": {"useful": 30.0, "stale": 15.2, "odd": 9.0},
        }
        told_of_time = {"measured_at": "2026-01-01T00:00:00+00:00", "gpu_seconds": spent, "useful_ratio": 0.8}
        played.say(goodput={**told_of_time, "untrained_tokens": {"stale": 12, "lost": 0}})
        await world.until("its time is accounted for", lambda: "goodput" in world.status())
        times = {"trainer/useful": 30, "trainer/undecided": 7, "inference/useful": 30, "inference/stale": 15}
        assert world.status()["goodput"] == {"usefulPercent": 80, **times, "tokens/stale": 12}
        await world.until("blocked by the quota", lambda: world.condition("Blocked").get("status") == "True")
        assert world.condition("Blocked")["reason"] == "QuotaExceeded"
        says = "4 sandboxes cannot be created: exceeded quota: few: 1 pods wanted, 2 used of 2"
        assert world.condition("Blocked")["message"] == says == world.status()["message"]
        said = await why(connection, namespace)
        assert says in said.splitlines()[0]
        assert "sandboxes: 0 alive, 0 starting; lost so far: evicted 2" in said
        assert "sandboxes: Unschedulable: 2 sandboxes cannot be scheduled: the cluster has no nodes" in said
        ready = {"type": "Ready", "status": "True"}
        pod = f"/api/v1/namespaces/{namespace}/pods/{first}"
        api.patch(f"{pod}/status", {"status": {"phase": "Running", "conditions": [ready]}})
        await world.until("one is alive", lambda: told(world).get("alive") == 1)
        await world.until("healed", lambda: world.condition("Blocked").get("status") == "False")
        assert world.status()["message"].endswith(says), "it goes on with one, and some still wait"
        api.delete(pod, grace_s=0)
        await world.until("it is gone", lambda: told(world).get("alive") == 0)
