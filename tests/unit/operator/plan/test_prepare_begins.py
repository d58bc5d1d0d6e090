"""What the prepare pod of an attempt is told, and what follows from what it says."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from echorl_core.names import ExitCode, Phase
from echorl_core.termination_message import encoded, message_of_end
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ContainerPhase, Kind, PodPhase, PodRecord
from echorl_operator.observed.world import Observed
from echorl_operator.plan.actions import Create, Plan
from echorl_testing.operator.observed_worlds import container, observed, pod, run
from echorl_testing.operator.planned_worlds import after, children, gang, planned, status

ARCHIVE = {"policy": "Never", "onExisting": "Archive"}


def preparing(attempt: int, **spec: Any) -> Observed:
    record = run(status(Phase.PREPARING, attempt), **spec)
    return observed(*gang(attempt, gated=True), run=record, children=children(record, attempt))


def arguments(made: Plan) -> list[str]:
    """Of the prepare pod that the plan makes."""
    bodies = [one.body for one in made.actions if isinstance(one, Create) and one.body["kind"] == "Pod"]
    (container,) = (one for one in bodies[0]["spec"]["containers"] if one["name"] == PodRole.PREPARE)
    found: list[str] = container["args"]
    return found


@pytest.mark.parametrize("attempt", [1, 2, 7])
@pytest.mark.parametrize(
    ("resume", "expected"),
    [
        (ARCHIVE, ["--policy", "Never", "--on-existing", "Archive"]),
        ({"policy": "FromStep", "step": 3}, ["--policy", "FromStep", "--step", "3", "--on-existing", "Refuse"]),
        ({}, ["--policy", "Auto", "--on-existing", "Refuse"]),
    ],
)
def test_every_attempt_is_told_what_the_manifest_says(
    attempt: int, resume: dict[str, Any], expected: list[str]
) -> None:
    """The one before may have ended before it had carried it out."""
    assert arguments(planned(preparing(attempt, resume=resume))) == expected


def overtaken(last_attempt: int) -> PodRecord:
    """A prepare pod of attempt 1 that found a later one on the volume."""
    words = message_of_end("prepare", ExitCode.FENCED, "attempt 6 has begun, attempt 1 is over", attempt=1)
    said = encoded(msgspec.structs.replace(words, last_attempt=last_attempt)).decode()
    main = container("prepare", ContainerPhase.TERMINATED, exit_code=int(ExitCode.FENCED), message=said)
    return pod("one-prepare-1", PodRole.PREPARE, phase=PodPhase.FAILED, ready=False, containers=(main,))


def test_a_lost_status_finds_its_attempt_on_the_volume() -> None:
    world = preparing(1)
    made = planned(replace(world, pods=(overtaken(6), *world.pods)))
    assert made.fence
    assert (made.status["attempt"], made.status["phase"]) == (7, "Preparing")
    assert "attempt 6" in made.status["message"]
    assert [one.body["metadata"]["name"] for one in made.actions if isinstance(one, Create)] == ["one-7-1"]
    assert "restartsByRole" not in made.status
    following = planned(after(replace(world, pods=(overtaken(6), *world.pods)), made))
    assert following.status["attempt"] == 7


@pytest.mark.parametrize(("said", "begun"), [(2, 3), (3, 2), (99, 2), (10**14, 2)])
def test_a_pods_label_is_believed_no_further_than_one_above_what_else_is_known(said: int, begun: int) -> None:
    world = preparing(1)
    lost = replace(world.run, status={"phase": "Running"})
    stranger = pod("one-trainer-0", PodRole.TRAINER, attempt=said)
    assert planned(replace(world, run=lost, pods=(stranger,))).status["attempt"] == begun


def test_a_revision_that_the_run_does_not_control_knows_of_no_attempt() -> None:
    world = preparing(1)
    revision = next(one for one in world.children if one.kind is Kind.REVISION)
    named = {"name": "one-99-1", "uid": "uid-forged"}
    forged = replace(revision, meta=replace(revision.meta, **named, owner_uid=""))
    own = replace(revision, meta=replace(revision.meta, **named))
    lost = replace(world, run=replace(world.run, status={}), pods=())
    assert planned(replace(lost, children=(*world.children, forged))).status["attempt"] == 2
    assert planned(replace(lost, children=(*world.children, own))).status["attempt"] == 100
