"""What only the cluster can know: told as a condition within seconds, healed by itself when the cause goes.

Pods are scheduled by the real scheduler onto fake nodes; what runs there is played once a test lets it.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from echorl_cli.cluster.access import reached
from echorl_cli.cluster.kubeconfig import place
from echorl_cli.cluster.reading import observe
from echorl_cli.cluster.sentence import sentence
from echorl_core.termination_message import SavedCheckpoint, SkippedCheckpoint
from echorl_operator import names
from echorl_testing import campaign
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.credentials import Connection
from echorl_testing.cluster.volumes import folder_volume
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.load import stretched
from echorl_testing.operator.lives_together import Together, operated
from echorl_testing.operator.operator_world import World, operating
from echorl_testing.operator.rendered import SETTINGS
from echorl_testing.operator.scripted_cluster import prepared, scripted

pytestmark = pytest.mark.timeout(400)

GPU = "nvidia.com/gpu"
TOLD_S = 10.0
"""After the run is created, on a machine that keeps up; some 3 s of it are the scheduler's and the controllers'."""
HEALS_S = 120.0
SMALL = {"size": "1Gi"}
KWOK_PLAYS = {"trainer", "inference", "orchestrator"}
"""Roles that are ready by themselves on fake nodes. Nobody reaches such an orchestrator."""


together = Together(operated, at_once=5)


@pytest.fixture(scope="module")
def crd(api: Api) -> None:
    install_crd(api)


@pytest.fixture
async def world(api: Api, connection: Connection, namespace: str, crd: None) -> AsyncIterator[World]:
    async with scripted(api, namespace) as cluster, operating(connection.kubeconfig, namespace) as operator:
        yield World(api, namespace, cluster, operator)


async def blocked(world: World, reason: str, *words: str) -> str:
    """Wait until the run is told to be blocked so; the message."""

    def told() -> bool:
        found, message = world.condition("Blocked"), world.status().get("message", "")
        right = (found.get("status"), found.get("reason")) == ("True", reason)
        return right and all(word in message for word in words)

    await world.until(f"Blocked is {reason}: {words}", told, stretched(TOLD_S))
    return str(world.condition("Blocked")["message"])


async def healed(world: World) -> None:
    def over() -> bool:
        found = world.condition("Blocked")
        return (found["status"], found["reason"]) == ("False", "Healed")

    await world.until("Blocked is over", over, HEALS_S)


def claim(world: World, name: str) -> None:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    path = f"/api/v1/namespaces/{world.namespace}/persistentvolumeclaims"
    world.api.create(path, {"metadata": {"name": name}, "spec": spec})


async def quota(world: World, name: str, **hard: str) -> Callable[[], Any]:
    """Set a quota, and wait until it counts; the call that takes it away."""
    path = f"/api/v1/namespaces/{world.namespace}/resourcequotas"
    limits = {key.replace("_", "/"): amount for key, amount in hard.items()}
    world.api.create(path, {"metadata": {"name": name}, "spec": {"hard": limits}})
    await world.until("the quota counts", lambda: "used" in world.api.get(f"{path}/{name}").get("status", {}))
    return lambda: world.api.delete(f"{path}/{name}")


# How soon the StatefulSet's controller tries again is its own affair: the longer the name was taken, the later.
@campaign.ALL
async def test_a_pod_that_somebody_took_the_runs_labels_off(world: World, connection: Connection) -> None:
    world.create()
    await world.phase("Running", attempt=1)
    path = f"/api/v1/namespaces/{world.namespace}/pods/one-trainer-0"
    taken = dict.fromkeys((names.LABEL_RUN, names.LABEL_RUN_UID, names.LABEL_ROLE, names.LABEL_ATTEMPT))
    uid = world.api.get(path)["metadata"]["uid"]
    world.api.patch(path, {"metadata": {"labels": taken, "ownerReferences": None}})
    await world.until("NameTaken is told", lambda: world.condition("Blocked").get("reason") == "NameTaken", HEALS_S)
    assert "one-trainer-0 cannot be created" in world.condition("Blocked")["message"]
    async with reached(place(connection.kubeconfig, None, world.namespace)) as cluster:
        seen = await observe(cluster, world.run())
    assert sentence(seen).startswith("one waits: one-trainer-0 cannot be created")
    assert world.api.get(path)["metadata"]["uid"] == uid, "it is left alone"
    world.api.delete(path, grace_s=0)
    await healed(world)
    await world.phase("Running", attempt=2, seconds=HEALS_S)


async def test_a_claim_that_is_missing(world: World, fake_nodes: Callable[..., list[str]], tmp_path: Path) -> None:
    fake_nodes(cpu=1)
    world.cluster.held = {"prepare", *KWOK_PLAYS}
    world.create(storage={"claimName": "data"})
    message = await blocked(world, "ClaimNotFound", "one-prepare-1 cannot be scheduled", "there is no claim data")
    assert world.namespace in message
    with folder_volume(world.api, world.namespace, "data", tmp_path):
        claim(world, "data")
        await healed(world)
        world.cluster.held = KWOK_PLAYS
        await world.phase("Starting", seconds=HEALS_S)


async def test_a_claim_that_gets_no_volume(world: World, fake_nodes: Callable[..., list[str]], tmp_path: Path) -> None:
    fake_nodes(cpu=1)
    world.cluster.held = {"prepare", *KWOK_PLAYS}
    world.create(storage=SMALL)
    await blocked(world, "ClaimPending", "its claim one-volume has no volume yet")

    def reason_is_told() -> bool:
        return "no persistent volumes available" in world.condition("Blocked")["message"]

    await world.until("what its events say is told", reason_is_told, stretched(TOLD_S))
    with folder_volume(world.api, world.namespace, "one-volume", tmp_path):
        await healed(world)
        world.cluster.held = KWOK_PLAYS
        await world.phase("Starting", seconds=HEALS_S)


async def test_a_storage_class_that_is_not_there(
    world: World, fake_nodes: Callable[..., list[str]], tmp_path: Path
) -> None:
    fake_nodes(cpu=1)
    world.cluster.held = {"prepare", *KWOK_PLAYS}
    world.create(storage={**SMALL, "storageClassName": "no-such-class"})
    named = 'its claim one-volume has no volume yet (storageclass.storage.k8s.io "no-such-class" not found)'
    assert "one-prepare-1 cannot be scheduled" in await blocked(world, "ClaimPending", named)
    # A volume of that class will do: a class need not be there to be in common.
    with folder_volume(world.api, world.namespace, "one-volume", tmp_path, storage_class="no-such-class"):
        await healed(world)
        world.cluster.held = KWOK_PLAYS
        await world.phase("Starting", seconds=HEALS_S)


async def test_gpus_that_no_node_has(world: World, fake_nodes: Callable[..., list[str]], tmp_path: Path) -> None:
    fake_nodes(cpu=1)
    with folder_volume(world.api, world.namespace, "one-volume", tmp_path):
        world.cluster.held = KWOK_PLAYS
        world.cluster.prepare = lambda attempt: prepared(attempt, resume_step=5)
        world.create(storage=SMALL, trainer={"replicas": 2, "gpusPerReplica": 8})
        await world.until("the gang is let through", lambda: world.status().get("phase") == "Starting", HEALS_S)
        await blocked(
            world,
            "Unschedulable",
            "one-trainer-0 and 1 more cannot be scheduled: 8 nvidia.com/gpu wanted; of 1 node, "
            "1 has too little nvidia.com/gpu free; waiting less than a minute",
        )
        assert world.status()["resumeStep"] == 5
        fake_nodes(gpu=2)
        await healed(world)


async def test_two_pods_of_a_gang_on_their_nodes_network_share_none(
    api: Api,
    connection: Connection,
    namespace: str,
    crd: None,
    fake_nodes: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    """Where the installation lets a run be there at all, the scheduler keeps them apart by the ports they declare."""
    settings = SETTINGS.model_copy(update={"host_network_cidrs": ("10.0.0.0/16",)})
    gang = {"replicas": 2, "gpusPerReplica": 0, "network": {"host": True}}
    async with scripted(api, namespace) as cluster:
        async with operating(connection.kubeconfig, namespace) as operator:
            world = World(api, namespace, cluster, operator)
            world.create(storage=SMALL, trainer=gang)
            await world.until("it is refused", lambda: "hostNetworkCidrs" in world.status().get("message", ""), HEALS_S)
            assert not world.pods("trainer")
        fake_nodes(cpu=1)
        with folder_volume(api, namespace, "one-volume", tmp_path):
            async with operating(connection.kubeconfig, namespace, settings=settings) as operator:
                world = World(api, namespace, cluster, operator)
                cluster.held = KWOK_PLAYS
                told = "of 1 node, 1 has no free host port for it"
                await world.until("one has no port", lambda: told in world.status().get("message", ""), HEALS_S)
                assert len(nodes_of(world)) == 1
                fake_nodes(cpu=1)
                await world.until("each has a node", lambda: len(nodes_of(world)) == 2, HEALS_S)


def nodes_of(world: World) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in world.pods("trainer").values() if "nodeName" in pod["spec"]}


@together
async def test_a_quota_that_stops_the_gang_is_told_by_events_alone(world: World) -> None:
    lift = await quota(world, "gpus", **{f"requests.{GPU.replace('/', '_')}": "4"})
    world.create(trainer={"replicas": 2, "gpusPerReplica": 8})
    await blocked(
        world,
        "QuotaExceeded",
        "2 trainer pods cannot be created: exceeded quota: gpus: 8 requests.nvidia.com/gpu wanted, 0 used of 4",
    )
    lift()
    await healed(world)
    await world.phase("Running", seconds=HEALS_S)


@together
async def test_a_quota_that_stops_engines(world: World) -> None:
    lift = await quota(world, "gpus", **{f"requests.{GPU.replace('/', '_')}": "0"})
    world.create(inference={"replicas": 2, "gpusPerReplica": 1})
    await blocked(world, "QuotaExceeded", "pods of Deployment one-inference cannot be created: exceeded quota: gpus")
    lift()
    await healed(world)
    await world.until("both engines are there", lambda: len(world.pods("inference")) == 2, HEALS_S)


@together
async def test_what_the_operator_itself_may_not_create(world: World) -> None:
    lift = await quota(world, "no-pods", count_pods="0")
    world.create()
    await blocked(
        world,
        "QuotaExceeded",
        "Pod one-prepare-1 cannot be created: exceeded quota: no-pods: 1 count/pods wanted, 0 used of 0",
    )
    lift()
    await healed(world)
    await world.phase("Running", seconds=HEALS_S)


@together
async def test_a_checkpoint_that_prepare_finds_damaged(world: World) -> None:
    def of_checkpoints(reason: str) -> Callable[[], bool]:
        return lambda: world.condition("CheckpointCommitted").get("reason") == reason

    world.create()
    await world.phase("Running", attempt=1, seconds=HEALS_S)
    saved = {"committed_at": "2026-01-01T00:00:00Z", "size_bytes": 9}
    world.cluster.orchestrators["one"].say(step=11, checkpoint={"step": 10, **saved})
    await world.until("the checkpoint is told", of_checkpoints("Committed"))
    said = prepared(2, resume_step=5)
    damaged = SkippedCheckpoint(step=10, reason="rank_0.bin: missing", damaged=True)
    found = msgspec.structs.replace(said.prepared, committed=[SavedCheckpoint(step=5, **saved)], skipped=[damaged])
    world.cluster.prepare = lambda _: msgspec.structs.replace(said, prepared=found)
    await world.cluster.end("one-trainer-0", 1)
    await world.until("the damage is told", of_checkpoints("Lost"), HEALS_S)
    told = world.condition("CheckpointCommitted")
    assert told["status"] == "False"
    assert told["message"] == "checkpoint 10 is damaged: rank_0.bin: missing; attempt 2 goes on from step 5"
    assert world.status()["checkpoint"]["step"] == 5
    await world.phase("Running", attempt=2, seconds=HEALS_S)
    world.cluster.orchestrators["one"].say(step=11, checkpoint={"step": 10, **saved})
    await world.until("the next checkpoint heals it", of_checkpoints("Committed"))
    assert world.status()["checkpoint"]["step"] == 10
