"""Which edits are still to be carried out: ``status.control``; which were looked at: ``status.observedGeneration``."""

from dataclasses import replace
from typing import Any

import pytest

from echorl_core.names import Phase
from echorl_operator.observed.memory import Memory
from echorl_operator.observed.records import Kind
from echorl_operator.observed.world import Observed
from echorl_operator.plan.actions import Plan
from echorl_testing.operator.observed_worlds import observed, run
from echorl_testing.operator.planned_worlds import after, children, edited, planned, running, status

REFUSED = {"algorithm": {"loss": {"type": "dppo", "kwargs": {"x": 1}}}}


def generations(made: Plan) -> tuple[int, int]:
    """That the attempt rests on, and that status and all its conditions are of."""
    (seen,) = {made.status["observedGeneration"], *(one["observedGeneration"] for one in made.status["conditions"])}
    return made.status["control"]["renderedGeneration"], seen


def test_an_edit_that_is_refused_is_looked_at_and_stays_to_be_carried_out() -> None:
    world = running()
    world = replace(world, run=edited(world.run, **REFUSED))
    refused = planned(world)
    assert generations(refused) == (1, 2)
    assert (refused.status["phase"], refused.status["attempt"]) == ("Running", 1)
    # Without another edit, as after an upgrade of the operator: what it accepts now is carried out.
    accepted = after(world, refused)
    accepted = replace(accepted, run=replace(accepted.run, spec=run(algorithm={"rlWeight": 0.5}).spec))
    made = planned(accepted)
    assert generations(made) == (2, 2)
    assert (made.status["phase"], made.status["attempt"]) == ("Restarting", 2)


@pytest.mark.parametrize(
    ("phase", "edit"), [(Phase.SUSPENDED, {"suspend": True}), (Phase.FAILED, {"ttlSecondsAfterFinished": 9})]
)
def test_it_lies_behind_while_a_run_is_at_rest(phase: Phase, edit: dict[str, Any]) -> None:
    record = edited(replace(run(), status=status(phase)), **edit)
    world: Observed = observed(run=record, children=children(run()))
    assert generations(planned(world)) == (1, 2)


def test_before_the_first_attempt_nothing_lies_behind() -> None:
    first = planned(observed(run=run(**REFUSED)))
    assert (first.status["observedGeneration"], first.status.get("control", {}).get("renderedGeneration")) == (1, None)
    again = replace(run(first.status), generation=2, spec=run(**REFUSED, maxSteps=7).spec)
    assert planned(observed(run=again)).status["observedGeneration"] == 2


def test_a_status_of_an_older_operator_still_says_which_edit_is_to_be_carried_out() -> None:
    old = status(Phase.RUNNING)
    del old["control"]["renderedGeneration"]
    world = running(edited(run(old), algorithm={"rlWeight": 0.5}))
    made = planned(world)
    assert generations(made) == (2, 2)
    assert (made.status["phase"], made.status["attempt"]) == ("Restarting", 2)
    # Where nobody knows any more how the attempt was rendered, it is rendered anew only if nothing was edited since.
    lost = running(run(old), children=tuple(one for one in children(run()) if one.kind is not Kind.REVISION))
    assert planned(lost).status["attempt"] == 1


def test_an_attempt_of_which_nobody_knows_what_it_rests_on_does_not_pass_for_the_newest() -> None:
    lost = Memory(attempt=3)
    assert Memory.of({"attempt": 3, "observedGeneration": 7, "control": lost.control()}).rendered_generation == 0
