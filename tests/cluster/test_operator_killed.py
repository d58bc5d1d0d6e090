"""The operator is killed at its k-th write, for every k of a run's life; a successor brings the run to the same end."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from echorl_core.last_words import words_of
from echorl_testing import faults
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.credentials import Connection
from echorl_testing.fault_proxy import FaultProxy, Upstream
from echorl_testing.operator_world import World, operating
from echorl_testing.run_objects import install_crd
from echorl_testing.scripted_cluster import scripted

pytestmark = pytest.mark.timeout(3600)

AT_ONCE = 6
DEADLINE_S = 90.0
AGENT = "echorl-operator"


@dataclass
class Life:
    """How one run's life went."""

    end: dict[str, Any]
    """What is there in the end."""
    writes: int
    """Of all its operators."""
    admitted: list[int]
    """Attempts of trainer pods, in the order in which they were let through."""


def end_of(world: World) -> dict[str, Any]:
    """The children that are left, and what status says; names and numbers, not uids and times."""
    base, ours = f"namespaces/{world.namespace}", "labelSelector=app.kubernetes.io/managed-by=echorl-operator"
    paths = {
        "statefulsets": f"/apis/apps/v1/{base}/statefulsets",
        "deployments": f"/apis/apps/v1/{base}/deployments",
        "revisions": f"/apis/apps/v1/{base}/controllerrevisions?{ours}",
        "services": f"/api/v1/{base}/services",
        "configmaps": f"/api/v1/{base}/configmaps?{ours}",
        "claims": f"/api/v1/{base}/persistentvolumeclaims",
        "accounts": f"/api/v1/{base}/serviceaccounts",
        "policies": f"/apis/networking.k8s.io/v1/{base}/networkpolicies",
        "secrets": f"/api/v1/{base}/secrets",
    }
    found = {kind: world.api.request("GET", path)["items"] for kind, path in paths.items()}
    status = world.status()
    return {
        **{kind: sorted(item["metadata"]["name"] for item in items) for kind, items in found.items()},
        "replicas": [item["spec"]["replicas"] for kind in ("statefulsets", "deployments") for item in found[kind]],
        **{key: status.get(key) for key in ("phase", "attempt", "restarts", "restartsByRole", "step", "revision")},
        "timeline": [(entry["phase"], entry["attempt"]) for entry in status["timeline"]],
    }


async def live(api: Api, namespace: str, proxy: FaultProxy, kubeconfig: Path, kill_at: int | None) -> Life:
    """A run that loses a rank once and then finishes; its operator is killed at its ``kill_at``-th write."""
    proxy.write_kubeconfig(kubeconfig)
    killed = asyncio.Event()
    if kill_at is not None:
        # The write happens, and who made it never learns of it.
        proxy.add(faults.drop(faults.writes, after=True, nth=kill_at))
        proxy.add(faults.Fault(faults.Callback(lambda _: killed.set()), faults.writes, nth=kill_at))
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(scripted(api, namespace))
        minding = asyncio.create_task(mind(kubeconfig, namespace, killed))
        stack.push_async_callback(end, minding)
        world = World(api, namespace, cluster, None)
        world.create()
        await world.phase("Running", attempt=1, seconds=DEADLINE_S)
        await world.until("both ranks run", lambda: len(cluster.admitted) >= 2, DEADLINE_S)
        await cluster.end("one-trainer-1", 1, words_of("trainer", 1, "lost", attempt=1))
        await world.phase("Running", attempt=2, seconds=DEADLINE_S)
        await world.until("both ranks run again", lambda: len(cluster.admitted) >= 4, DEADLINE_S)
        cluster.orchestrators["one"].say(step=20, phase="Succeeded")
        await world.phase("Succeeded", seconds=DEADLINE_S)
        await world.until(
            "GPUs are free", lambda: not world.pods("trainer") and not world.pods("inference"), DEADLINE_S
        )
        await world.until("status is settled", lambda: world.status()["inference"]["replicas"] == 0, DEADLINE_S)
        assert not minding.done()
        return Life(
            await asyncio.to_thread(end_of, world), len(proxy.writes_by(AGENT)), [one for _, one in cluster.admitted]
        )


async def mind(kubeconfig: Path, namespace: str, killed: asyncio.Event) -> None:
    """An operator; after it was killed, another one."""
    async with operating(kubeconfig, namespace):
        await killed.wait()
    async with operating(kubeconfig, namespace):
        await asyncio.Event().wait()


async def end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_killed_at_every_write(
    api: Api, connection: Connection, make_namespace: Callable[..., str], tmp_path: Path
) -> None:
    install_crd(api)
    upstream = await Upstream.from_kubeconfig(connection.kubeconfig)

    async def one(kill_at: int | None) -> Life:
        namespace = await asyncio.to_thread(make_namespace)
        async with FaultProxy(upstream) as proxy:
            return await live(api, namespace, proxy, tmp_path / f"kubeconfig-{kill_at}", kill_at)

    undisturbed = await one(None)
    assert undisturbed.end["phase"] == "Succeeded"
    turn, problems = asyncio.Semaphore(AT_ONCE), []

    async def disturbed(kill_at: int) -> None:
        async with turn:
            try:
                life = await one(kill_at)
            except (AssertionError, TimeoutError) as error:
                problems.append(f"killed at write {kill_at}: {error}")
                return
        if life.end != undisturbed.end:
            problems.append(f"killed at write {kill_at}: {life.end}\nundisturbed: {undisturbed.end}")
        if life.admitted != [1, 1, 2, 2]:
            problems.append(f"killed at write {kill_at}: attempts let through: {life.admitted}")
        if life.writes > 2 * undisturbed.writes:
            problems.append(f"killed at write {kill_at}: {life.writes} writes, undisturbed {undisturbed.writes}")

    async with asyncio.TaskGroup() as group:
        for kill_at in range(1, undisturbed.writes + 1):
            group.create_task(disturbed(kill_at))
    assert not problems, f"{len(problems)} of {undisturbed.writes}:\n" + "\n".join(problems)
