"""An elastic gang on nodes that come and go: real API server, scheduler, StatefulSet controller and operator."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echorl_cli.cluster.access import reached
from echorl_cli.cluster.kubeconfig import place
from echorl_cli.cluster.reading import observe
from echorl_cli.cluster.sentence import sentence
from echorl_core.names import ExitCode
from echorl_core.termination_message import message_of_end
from echorl_operator import names
from echorl_testing import campaign
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.credentials import Connection
from echorl_testing.cluster.volumes import folder_volume
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.operator.operator_world import World, operating
from echorl_testing.operator.scripted_cluster import scripted

pytestmark = pytest.mark.timeout(300)

TRAINER = {"replicas": 2, "gpusPerReplica": 8, "elastic": {"minReplicas": 1, "afterSeconds": 2}}
LACKS = "one-trainer-1 could not be scheduled: 8 nvidia.com/gpu wanted; of 1 node, 1 has too little nvidia.com/gpu free"


def let_through(world: World) -> dict[str, tuple[int, str]]:
    """Attempt and node of the trainer pods that were let through: they are of one attempt, whenever one looks."""
    pods = {name: pod for name, pod in world.pods("trainer").items() if not pod["spec"].get("schedulingGates")}
    found = {name: (attempt_of(pod), pod["spec"].get("nodeName", "")) for name, pod in pods.items()}
    assert len({attempt for attempt, _ in found.values()}) <= 1, found
    return found


def attempt_of(pod: dict[str, Any]) -> int:
    return int(pod["metadata"]["labels"][names.LABEL_ATTEMPT])


def is_running(world: World, attempt: int, nodes: int) -> Callable[[], bool]:
    """Whether the attempt runs, with so many trainer pods on nodes and no other."""

    def question() -> bool:
        pods, status = let_through(world), world.status()
        placed = [node for of, node in pods.values() if of == attempt and node]
        return (status.get("phase"), len(placed), len(pods)) == ("Running", nodes, nodes)

    return question


@campaign.ALL
async def test_a_gang_goes_on_with_one_node_and_grows_when_there_are_two(
    api: Api, connection: Connection, namespace: str, fake_nodes: Callable[..., list[str]], tmp_path: Path
) -> None:
    install_crd(api)
    fake_nodes(gpu=1)
    async with scripted(api, namespace) as cluster, operating(connection.kubeconfig, namespace):
        world = World(api, namespace, cluster, None)
        # They get nodes and run there as kwok has it; all other pods are played.
        cluster.held = {"trainer"}
        with folder_volume(api, namespace, "one-volume", tmp_path):
            world.create(storage={"size": "1Gi"}, trainer=TRAINER)
            await world.until("it trains with one pod", is_running(world, attempt=2, nodes=1))
            assert world.condition("GangWhole")["message"].endswith(LACKS)
            # Spare pods look for the place that is missing, and stand in nobody's way.
            spare = {"one-trainer-1": (2, "")}
            await world.until("a spare pod looks for a node", lambda: spare.items() <= let_through(world).items())
            async with reached(place(connection.kubeconfig, None, namespace)) as access:
                said = sentence(await observe(access, world.run()))
            assert "training" in said or "waiting for episodes" in said
            assert "1 of 2 trainer pods since" in said
            assert said.endswith(LACKS)
            played = cluster.orchestrators["one"]
            assert played.asked_to_stop == 0
            fake_nodes(gpu=1)
            await world.until("it is asked to save", lambda: played.asked_to_stop)
            assert let_through(world)["one-trainer-1"][1], "not before the place is held"
            words = message_of_end("orchestrator", ExitCode.STOPPED, "stopped", attempt=2, step=7)
            await cluster.end("one-orchestrator", ExitCode.STOPPED, words)
            await world.until("it trains with both", is_running(world, attempt=3, nodes=2))
        assert world.condition("GangWhole")["status"] == "True"
        assert world.status()["restarts"] == 0
        events = {one["reason"] for one in api.get(f"/api/v1/namespaces/{namespace}/events")["items"]}
        assert {"GangShrunk", "Growing", "GangGrown"} <= events
