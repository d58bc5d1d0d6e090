"""What a run that was suspended, or has ended, brings along when it goes on: its steps, and no clock or count."""

from dataclasses import replace
from typing import Any

import pytest

from echorl_core.names import Phase
from echorl_operator.names import PodRole
from echorl_operator.observed.runs import RunRecord
from echorl_operator.observed.times import to_text
from echorl_operator.observed.world import Observed
from echorl_operator.plan.actions import AskToStop, Delete
from echorl_testing.operator.observed_worlds import NOW, ended, observed, run
from echorl_testing.operator.planned_worlds import (
    after,
    children,
    edited,
    gang,
    orchestrator,
    planned,
    running,
    status,
)

LIMIT = {"activeDeadlineSeconds": 600}


def at_rest(record: RunRecord, **changes: Any) -> Observed:
    """Without pods."""
    return observed(run=record, children=children(run()), **changes)


def test_a_run_that_is_active_for_too_long_fails() -> None:
    first = planned(observed(run=run(**LIMIT)))
    assert first.wake_after_s == 600.0
    world = running(replace(run(**LIMIT), status=status(Phase.RUNNING, control={"activeSince": to_text(NOW)})))
    assert planned(replace(world, now=NOW + 599)).status["phase"] == "Running"
    late = planned(replace(world, now=NOW + 600))
    assert (late.status["phase"], late.status["control"]["failure"]) == ("Failed", "DeadlineExceeded")


def test_the_deadline_stands_still_while_the_run_is_suspended_and_begins_anew_after() -> None:
    begun = status(Phase.RUNNING, control={"activeSince": to_text(NOW)})
    world = running(replace(run(**LIMIT), status=begun))
    asked = replace(world, run=edited(world.run, suspend=True))
    suspending = planned(replace(asked, now=NOW + 700))
    assert suspending.status["phase"] == "Running"
    suspended = planned(after(asked, suspending, pods=(), now=NOW + 10_000))
    assert suspended.status["phase"] == "Suspended"
    resumed = after(asked, suspended, pods=(), now=NOW + 20_000)
    resumed = replace(resumed, run=edited(resumed.run, suspend=False))
    going_on = planned(resumed)
    assert (going_on.status["phase"], going_on.status["attempt"]) == ("Preparing", 2)
    assert going_on.wake_after_s == 600.0
    assert going_on.status["startTime"] == begun["startTime"]
    later = after(resumed, going_on, now=NOW + 20_600)
    assert planned(later).status["phase"] == "Failed"


def test_the_deadline_begins_anew_for_a_run_that_failed_of_it() -> None:
    failed = replace(run(**LIMIT), status=status(Phase.FAILED, control={"failure": "DeadlineExceeded"}))
    world = at_rest(edited(failed, activeDeadlineSeconds=300), now=NOW + 5000)
    made = planned(world)
    assert (made.status["phase"], made.wake_after_s) == ("Preparing", 300.0)
    assert planned(after(world, made, now=NOW + 5299)).status["phase"] != "Failed"
    assert planned(after(world, made, now=NOW + 5300)).status["phase"] == "Failed"


def test_each_suspension_has_its_own_time_to_save() -> None:
    world = running()
    suspended = replace(world, run=edited(world.run, suspend=True))
    first = planned(suspended)
    assert first.status["control"]["stopAskedAt"] == to_text(NOW)
    back = after(suspended, first)
    back = replace(back, run=edited(back.run, suspend=False), now=NOW + 5)
    active = planned(back)
    assert "stopAskedAt" not in active.status["control"]
    again = after(back, active)
    again = planned(replace(again, run=edited(again.run, suspend=True), now=NOW + 2000))
    assert [type(one) for one in again.actions if isinstance(one, AskToStop | Delete)] == [AskToStop]
    assert not any(note.reason == "NotSaved" for note in again.notes)


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.SUSPENDED])
def test_restarts_count_from_nothing_when_a_failed_run_goes_on(phase: Phase) -> None:
    used = {"failure": "RestartsUsedUp", "restartsUsed": {"trainer": 5}, "reachedStep": 9}
    record = replace(run(), status=status(phase, control=used, step=9, restartsByRole={"trainer": 5}))
    made = planned(at_rest(edited(record, maxSteps=900)))
    assert made.status["attempt"] == 2
    assert made.status["restartsByRole"] == {"trainer": 5}
    assert made.status["control"]["reachedStep"] == 9
    if phase is Phase.SUSPENDED:
        # Queues suspend and resume runs, crashing ones too.
        assert made.status["control"]["restartsUsed"] == {"trainer": 5}
        return
    assert "restartsUsed" not in made.status["control"]
    record = replace(run(), status=status(Phase.RUNNING, control=made.status["control"] | {"failure": None}))
    crashed = ended("one-trainer-1", PodRole.TRAINER, 1, index=1)
    again = planned(
        replace(observed(gang()[0], crashed, orchestrator(), run=record, children=children(run())), now=NOW + 60)
    )
    assert again.status["phase"] == "Restarting"
