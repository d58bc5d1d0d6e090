"""A gang whose pods hold copies for each other loses pods: real API server, StatefulSet controller and operator."""

from pathlib import Path
from typing import Any

import pytest

from echorl_operator import names
from echorl_testing import campaign
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.credentials import Connection
from echorl_testing.cluster.volumes import folder_volume
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.operator.operator_world import World, operating
from echorl_testing.operator.scripted_cluster import scripted

pytestmark = pytest.mark.timeout(300)

TRAINER = {"replicas": 3, "gpusPerReplica": 0}
MEMORY = {"interval": 5, "memory": {"limit": "1Gi", "mirror": True}}
LOST = "one-trainer-1"


def uids(world: World) -> dict[str, str]:
    """Of the trainer pods that were let through."""
    found: dict[str, Any] = world.pods("trainer")
    return {
        name: pod["metadata"]["uid"]
        for name, pod in found.items()
        if not pod["spec"].get("schedulingGates") and "deletionTimestamp" not in pod["metadata"]
    }


async def replaced(world: World, before: dict[str, str], lost: str = LOST) -> None:
    """Another pod was let through in the lost one's place, and no other was touched."""

    def question() -> bool:
        now = uids(world)
        return len(now) == len(before) and now[lost] != before[lost]

    await world.until("another pod is let through", question)
    assert {name for name, uid in uids(world).items() if before[name] != uid} == {lost}


@campaign.ALL
async def test_others_take_the_place_of_lost_pods_in_the_same_attempt_and_the_other_pods_stay(
    api: Api, connection: Connection, namespace: str, tmp_path: Path
) -> None:
    install_crd(api)
    async with scripted(api, namespace) as cluster, operating(connection.kubeconfig, namespace):
        world = World(api, namespace, cluster, None)
        with folder_volume(api, namespace, "one-volume", tmp_path):
            policy = {"maxRestarts": 9, "backoffSeconds": 0}
            world.create(storage={"size": "1Gi"}, trainer=TRAINER, checkpoint=MEMORY, failurePolicy=policy)
            await world.phase("Running", attempt=1)
            orchestrator = cluster.orchestrators["one"]
            orchestrator.say(step=3)
            await world.until("a step is made", lambda: world.status().get("step") == 3)
            first = uids(world)
            await cluster.end(LOST, 137)
            await replaced(world, first)
            told = {"count": 1, "reason": "others have taken the place of lost pods: 1", "replacements": 1}
            orchestrator.say(restarts_in_place=told, step=4)
            await world.until("it is told", lambda: world.status()["control"].get("replacements") == 1)
            assert world.status()["control"]["restartsUsed"] == {"trainer": 1}
            # Somebody takes one away: a notice, and none of what maxRestarts limits.
            second = uids(world)
            api.delete(f"/api/v1/namespaces/{namespace}/pods/{LOST}")
            await replaced(world, second)
            status = world.status()
            assert (status["attempt"], status["notices"], status["phase"]) == (1, 1, "Running")
            assert status["control"]["restartsUsed"] == {"trainer": 1}
            orchestrator.say(restarts_in_place={**told, "count": 2, "replacements": 2}, step=5)
            await world.until("it is told", lambda: world.status()["control"].get("replacements") == 2)
            # The first one decides for the gang: the next one goes on from what the others know.
            third = uids(world)
            await cluster.end("one-trainer-0", 137)
            await replaced(world, third, "one-trainer-0")
            assert world.status()["attempt"] == 1
            orchestrator.say(restarts_in_place={**told, "count": 3, "replacements": 3}, step=6)
            await world.until("it is told", lambda: world.status()["control"].get("replacements") == 3)
            # Two neighbours hold each other's copies: a new attempt.
            fourth = uids(world)
            await cluster.end("one-trainer-0", 137)
            await cluster.end(LOST, 137)
            await world.phase("Running", attempt=2)
            assert not set(uids(world).values()) & set(fourth.values())
        events = {one["reason"] for one in api.get(f"/api/v1/namespaces/{namespace}/events")["items"]}
        assert {"PodLost", "PodReplaced", "Notice", "GangRestarted"} <= events
        attempts = {int(pod["metadata"]["labels"][names.LABEL_ATTEMPT]) for pod in world.pods("trainer").values()}
        assert attempts == {2}
