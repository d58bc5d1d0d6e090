"""The life of an elastic gang, pass by pass, on a cluster whose nodes come and go."""

import json
from typing import Any

import pytest

from echorl_core.names import ExitCode
from echorl_core.termination_message import message_of_end
from echorl_operator import names
from echorl_operator.names import PodRole
from echorl_operator.observed.memory import GangSize
from echorl_operator.observed.records import Kind
from echorl_operator.plan.actions import AskToStop
from echorl_operator.plan.elasticity import counts
from echorl_testing.operator.imagined_cluster import ImaginedCluster

AFTER_S = 60
SHRUNK = "one-trainer-1 could not be scheduled: of 3 nodes, 3 have too little nvidia.com/gpu free"


def elastic(replicas: int = 2, least: int = 1, **trainer: Any) -> dict[str, Any]:
    bounds = {"minReplicas": least, "afterSeconds": AFTER_S}
    return {"replicas": replicas, "gpusPerReplica": 0, "elastic": bounds} | trainer


def cluster_of(places: int, **spec: Any) -> ImaginedCluster:
    cluster = ImaginedCluster(**({"trainer": elastic(), "failurePolicy": {"maxRestarts": 0}} | spec))
    cluster.places = places
    cluster.settle()
    return cluster


def shrunk(**spec: Any) -> ImaginedCluster:
    """A run of two pods that trains with one."""
    cluster = cluster_of(1, **spec)
    cluster.settle_after(AFTER_S)
    cluster.begin()
    return cluster


def trainers(cluster: ImaginedCluster) -> dict[str, tuple[int, bool]]:
    """Attempt, and whether it has a node, of each trainer pod."""
    pods = (pod for pod in cluster.pods.values() if pod.role is PodRole.TRAINER)
    return {pod.meta.name: (pod.attempt, bool(pod.node and not pod.gated)) for pod in pods}


def pods_of_the_gang(cluster: ImaginedCluster) -> list[str]:
    """How many pods there are, as each trainer pod is told."""
    body = json.loads(cluster.children[Kind.STATEFUL_SET, "one-trainer"].body)
    (container,) = body["spec"]["template"]["spec"]["containers"]
    return [one["value"] for one in container["env"] if one["name"] == "ECHORL_PODS"]


def packed_for(cluster: ImaginedCluster) -> set[int]:
    """Ranks that orchestrators pack batches for, by the run's configs."""
    bodies = (json.loads(one.body) for (kind, _), one in cluster.children.items() if kind is Kind.CONFIG_MAP)
    files = (body["data"]["orchestrator.json"] for body in bodies if "orchestrator.json" in body["data"])
    return {json.loads(text)["batch"]["num_ranks"] for text in files}


def events(cluster: ImaginedCluster, *reasons: str) -> list[str]:
    return [note.message for note in cluster.notes if note.reason in reasons]


def stop(cluster: ImaginedCluster, step: int) -> None:
    """The orchestrator saves and ends, as it was asked to; so do the ranks."""
    said = message_of_end("orchestrator", ExitCode.STOPPED, "stopped", attempt=cluster.status["attempt"], step=step)
    cluster.end("one-orchestrator", ExitCode.STOPPED, said)


def test_a_gang_without_a_node_for_one_pod_goes_on_with_the_others() -> None:
    cluster = cluster_of(1)
    cluster.settle_after(AFTER_S - 1)
    assert cluster.status["attempt"] == 1
    assert cluster.condition("GangWhole") == ("True", "Whole", "")
    made = cluster.settle()
    assert made.wake_after_s is not None
    assert made.wake_after_s <= 1.0
    cluster.settle_after(1.0)
    cluster.begin()
    assert (cluster.status["attempt"], trainers(cluster)) == (2, {"one-trainer-0": (2, True)})
    assert (pods_of_the_gang(cluster), 1 in packed_for(cluster)) == (["1"], True)
    assert cluster.status["roles"]["trainer"]["desired"] == 1
    kind, reason, message = cluster.condition("GangWhole")
    assert (kind, reason) == ("False", "Shrunk")
    assert message.startswith("1 of 2 trainer pods since 2027-")
    assert message.endswith(SHRUNK)
    assert cluster.status["message"] == f"training, with {message}"
    assert cluster.condition("Progressing")[0] == "True"
    told = f"attempt 2: {SHRUNK}; the gang goes on with 1 of 2 trainer pods"
    assert events(cluster, "GangShrunk") == [told]


def test_a_change_of_size_is_no_fault() -> None:
    cluster = shrunk()
    assert cluster.status["restarts"] == 0
    assert "restartsUsed" not in cluster.status["control"]


def test_it_grows_once_a_spare_pod_has_a_node_and_the_gang_has_saved() -> None:
    cluster = shrunk()
    cluster.settle_after(AFTER_S)
    assert trainers(cluster) == {"one-trainer-0": (2, True), "one-trainer-1": (2, False)}
    assert cluster.condition("Blocked")[0] in ("", "False"), "spare pods hold up nothing"
    assert cluster.status["phase"] == "Running"
    assert cluster.status["roles"]["trainer"]["desired"] == 1
    cluster.places = 2
    cluster.schedule()
    made = cluster.settle()
    assert [type(action) for action in made.actions] == [AskToStop]
    assert cluster.status["message"] == "saving a checkpoint before the gang grows"
    assert cluster.status["attempt"] == 2
    stop(cluster, 5)
    cluster.settle()
    assert trainers(cluster) == {"one-trainer-0": (3, True), "one-trainer-1": (3, True)}
    assert pods_of_the_gang(cluster) == ["2"]
    assert events(cluster, "GangGrown") == [
        "attempt 3: places for 1 more trainer pods were found: the gang goes on with 2 of 2"
    ]
    assert cluster.condition("GangWhole")[1] == "Whole"
    assert "tries" in cluster.status["control"]["gang"], "until it is seen to train"
    cluster.say(step=cluster.status.get("resumeStep", 0) + 1)
    cluster.settle()
    assert "gang" not in cluster.status["control"]
    assert cluster.status["restarts"] == 0


def test_an_orchestrator_that_saves_nothing_is_not_waited_for_without_end() -> None:
    cluster = shrunk()
    cluster.places = 2
    cluster.settle_after(AFTER_S)
    cluster.settle_after(901.0)
    assert cluster.status["attempt"] == 3
    assert len(trainers(cluster)) == 2


def test_a_place_that_is_lost_again_makes_spare_pods_come_later() -> None:
    cluster = shrunk()
    cluster.places = 2
    cluster.settle_after(AFTER_S)
    cluster.places = 1
    stop(cluster, 5)
    cluster.settle()
    assert (cluster.status["attempt"], len(trainers(cluster))) == (3, 2)
    cluster.settle_after(AFTER_S)
    cluster.begin()
    assert (cluster.status["attempt"], len(trainers(cluster))) == (4, 1)
    cluster.settle_after(2 * AFTER_S - 1)
    assert len(trainers(cluster)) == 1
    cluster.settle_after(1.0)
    assert len(trainers(cluster)) == 2


def test_a_lost_spare_pod_is_no_loss() -> None:
    cluster = shrunk(trainer=elastic(replicas=3))
    cluster.places = 2
    cluster.settle_after(AFTER_S)
    placed = {"one-trainer-0": (2, True), "one-trainer-1": (2, True), "one-trainer-2": (2, False)}
    assert trainers(cluster) == placed
    cluster.end("one-trainer-1", 137)
    cluster.remove("one-trainer-1")
    cluster.settle_after(5.0)
    assert (cluster.status["attempt"], cluster.status["phase"]) == (2, "Running")
    assert trainers(cluster) == placed


def test_some_places_alone_are_used_after_a_while() -> None:
    cluster = shrunk(trainer=elastic(replicas=3))
    cluster.places = 2
    cluster.settle_after(AFTER_S)
    made = cluster.settle_after(299.0)
    assert (cluster.status["message"].split(",")[0], made.wake_after_s) == ("training", 1.0)
    cluster.settle_after(1.0)
    stop(cluster, 5)
    cluster.settle()
    assert trainers(cluster) == {"one-trainer-0": (3, True), "one-trainer-1": (3, True)}
    assert cluster.condition("GangWhole")[2].startswith("2 of 3 trainer pods since")


@pytest.mark.parametrize(
    ("parallel", "replicas", "places", "pods"), [({"replicate": 2}, 4, 3, 2), ({"context": 2}, 6, 5, 4)]
)
def test_a_size_is_one_that_the_layout_takes(parallel: dict[str, int], replicas: int, places: int, pods: int) -> None:
    cluster = cluster_of(places, trainer=elastic(replicas, least=2, parallel=parallel))
    cluster.settle_after(AFTER_S)
    cluster.begin()
    assert len(trainers(cluster)) == pods


def test_with_too_few_nodes_for_the_least_it_waits() -> None:
    cluster = cluster_of(1, trainer=elastic(3, least=2))
    cluster.settle_after(10 * AFTER_S)
    assert (cluster.status["attempt"], cluster.condition("Blocked")[1]) == (1, "Unschedulable")
    made = cluster.look()
    assert made.wake_after_s, "it does not look again at once"
    cluster.places = 2
    cluster.schedule()
    cluster.settle()
    assert (cluster.status["attempt"], len(trainers(cluster))) == (2, 2)


def test_what_fewer_pods_would_miss_too_is_no_reason() -> None:
    cluster = ImaginedCluster(trainer=elastic())
    cluster.places, cluster.unscheduled = 1, 'persistentvolumeclaim "one-volume" not found'
    cluster.settle()
    cluster.settle_after(10 * AFTER_S)
    assert (cluster.status["attempt"], cluster.condition("Blocked")[1]) == (1, "ClaimNotFound")


@pytest.mark.parametrize("edit", ["more replicas", "no elastic", "more at least"])
def test_an_edit_of_its_size_is_carried_out(edit: str) -> None:
    cluster = shrunk()
    cluster.places = 3
    trainer = {
        "more replicas": elastic(3),
        "no elastic": {"replicas": 2, "gpusPerReplica": 0},
        "more at least": elastic(3, least=2),
    }[edit]
    cluster.edit(trainer=trainer)
    cluster.settle()
    assert (cluster.status["attempt"], len(trainers(cluster))) == (3, trainer["replicas"])
    assert "gang" not in cluster.status["control"]


def test_other_edits_leave_its_size() -> None:
    cluster = shrunk()
    cluster.edit(maxSteps=77)
    cluster.settle()
    assert cluster.status["attempt"] == 2
    cluster.edit(maxSteps=77, trainer=elastic(seqLen=512))
    cluster.settle()
    assert (cluster.status["attempt"], len(trainers(cluster))) == (3, 1)


def test_a_suspended_gang_goes_on_whole() -> None:
    cluster = shrunk()
    cluster.edit(suspend=True)
    cluster.settle()
    stop(cluster, 5)
    cluster.settle()
    assert cluster.status["phase"] == "Suspended"
    cluster.places = 2
    cluster.edit(suspend=False)
    cluster.settle()
    assert (cluster.status["attempt"], len(trainers(cluster))) == (3, 2)


def test_a_crash_while_it_saves_is_a_fault_like_any_other() -> None:
    cluster = shrunk(failurePolicy={"maxRestarts": 1, "backoffSeconds": 0})
    cluster.places = 2
    cluster.settle_after(AFTER_S)
    cluster.end("one-trainer-0", 1)
    cluster.settle_after(5.0)
    assert (cluster.status["attempt"], cluster.status["restartsByRole"]) == (3, {"trainer": 1})
    assert len(trainers(cluster)) == 1
    assert "grows" not in cluster.status["control"]["gang"]


def test_a_rendering_that_somebody_took_away_is_of_the_same_size_again() -> None:
    cluster = shrunk()
    del cluster.children[Kind.REVISION, names.revision("one", 2, 1)]
    cluster.settle()
    assert (cluster.status["attempt"], len(trainers(cluster)), pods_of_the_gang(cluster)) == (2, 1, ["1"])


@pytest.mark.parametrize(
    "trainer", [5, None, [], {"elastic": 1}, {"elastic": {"minReplicas": "two"}}, {"elastic": {"minReplicas": None}}]
)
def test_no_size_rests_on_what_is_no_manifest(trainer: Any) -> None:
    size = GangSize(pods=1, replicas=1, since=0)
    assert counts(size, {"trainer": {"elastic": {}}})
    assert not counts(size, {"trainer": trainer})
    assert not counts(None, {"trainer": trainer})
