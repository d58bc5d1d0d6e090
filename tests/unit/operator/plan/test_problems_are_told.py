"""An event when a run becomes blocked or its manifest invalid: one each time, and none while it stays so."""

from dataclasses import replace

from echorl_operator.names import PodRole
from echorl_operator.observed.records import PodPhase
from echorl_operator.plan.actions import Note, Plan
from echorl_testing.operator.imagined_cluster import ImaginedCluster

NOWHERE = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def told(made: Plan) -> list[Note]:
    return [note for note in made.notes if note.reason in ("Blocked", "InvalidSpec")]


def test_a_manifest_that_cannot_be_carried_out() -> None:
    cluster = ImaginedCluster()
    right, wrong = cluster.run.spec.get("algorithm"), {"batchSize": 65}
    cluster.edit(algorithm=wrong)
    (note,) = told(cluster.step())
    assert (note.type, note.reason) == ("Warning", "InvalidSpec")
    assert note.message.startswith("Invalid: spec.algorithm.batchSize: found 65; accepted: a multiple of groupSize")
    assert told(cluster.step()) == []
    cluster.edit(algorithm=right)
    assert told(cluster.step()) == []
    cluster.edit(algorithm=wrong)
    assert told(cluster.step()) == [note]


def test_a_gang_without_a_node() -> None:
    cluster = ImaginedCluster().begin()
    whole = dict(cluster.pods)
    for name, one in whole.items():
        if one.role is PodRole.TRAINER:
            cluster.pods[name] = replace(
                one, phase=PodPhase.PENDING, ready=False, node="", unscheduled=NOWHERE, wants=(), containers=()
            )
    (note,) = told(cluster.step())
    assert (note.type, note.reason) == ("Warning", "Blocked")
    assert note.message.startswith("Unschedulable: one-trainer-0 and 1 more cannot be scheduled")
    cluster.now += 3600
    cluster.say()
    assert told(cluster.step()) == [], "its message changes with time"
    cluster.pods = whole
    assert told(cluster.step()) == []
