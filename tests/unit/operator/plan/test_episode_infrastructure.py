"""The condition that episodes are not lost to infrastructure."""

import pytest

from echorl_core.names import Phase
from echorl_core.wire.run_state import InfrastructureLoss
from echorl_testing.operator.observed_worlds import run
from echorl_testing.operator.planned_worlds import condition, planned, running, state, status

LOSS = InfrastructureLoss(environment="swe", share=0.25, limit=0.1, error="infrastructure: the image is not there")


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        (None, None),
        ((), ("True", "WithinBound", "")),
        (
            (LOSS,),
            (
                "False",
                "ShareExceeded",
                "swe loses 25% of its episodes, of 10%; the last one: infrastructure: the image is not there",
            ),
        ),
    ],
)
def test_it_says_what_is_lost_and_why(
    losses: tuple[InfrastructureLoss, ...] | None, expected: tuple[str, str, str] | None
) -> None:
    record = run(status(Phase.RUNNING))
    world = running(record, role_state=state(infrastructure_losses=losses))
    told = condition(planned(world), "EpisodeInfrastructure")
    assert (told and (told["status"], told["reason"], told["message"])) == expected
