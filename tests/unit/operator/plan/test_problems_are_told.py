"""An event when a run becomes blocked or its manifest invalid: one each time, and none while it stays so."""

from dataclasses import replace

from echorl_operator.names import PodRole
from echorl_operator.observed.records import PodPhase
from echorl_operator.plan.actions import Note, Plan
from echorl_testing.planned_world import PlannedWorld

NOWHERE = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def told(made: Plan) -> list[Note]:
    return [note for note in made.notes if note.reason in ("Blocked", "InvalidSpec")]


def test_a_manifest_that_cannot_be_carried_out() -> None:
    world = PlannedWorld()
    good = world.now.run.spec
    wrong = {**good, "algorithm": {"batchSize": 65}}
    world.now = replace(world.now, run=replace(world.now.run, spec=wrong))
    (note,) = told(world.carry_out())
    assert (note.type, note.reason) == ("Warning", "InvalidSpec")
    assert note.message.startswith("Invalid: spec.algorithm.batchSize: found 65; accepted: a multiple of groupSize")
    assert told(world.carry_out()) == []
    world.now = replace(world.now, run=replace(world.now.run, spec=good))
    assert told(world.carry_out()) == []
    world.now = replace(world.now, run=replace(world.now.run, spec=wrong))
    assert told(world.carry_out()) == [note]


def test_a_gang_without_a_node() -> None:
    world = PlannedWorld()
    world.start()
    whole = world.now.pods
    world.now = replace(
        world.now,
        pods=tuple(
            replace(one, phase=PodPhase.PENDING, ready=False, node="", unscheduled=NOWHERE, wants=(), containers=())
            if one.role is PodRole.TRAINER
            else one
            for one in whole
        ),
    )
    (note,) = told(world.carry_out())
    assert (note.type, note.reason) == ("Warning", "Blocked")
    assert note.message.startswith("Unschedulable: one-trainer-0 and 1 more cannot be scheduled")
    world.now = replace(world.now, now=world.now.now + 3600)
    assert told(world.carry_out()) == [], "its message changes with time"
    world.now = replace(world.now, pods=whole)
    assert told(world.carry_out()) == []
