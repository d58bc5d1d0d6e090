"""What the prepare pod of an attempt is told, and what follows from what it says."""

from typing import Any

import pytest

from echorl_core.names import Phase
from echorl_operator.names import PodRole
from echorl_operator.observed.world import Observed
from echorl_operator.plan.actions import Create, Plan
from echorl_testing.observed_worlds import observed, run
from echorl_testing.planned_worlds import children, gang, planned, status

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
