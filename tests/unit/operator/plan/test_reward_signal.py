"""The condition that rewards teach something."""

import pytest

from echorl_core.names import Phase
from echorl_testing.operator.observed_worlds import run
from echorl_testing.operator.planned_worlds import condition, planned, running, state, status


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        (None, None),
        (0, ("True", "RewardsDiffer")),
        (2, ("True", "RewardsDiffer")),
        (3, ("False", "NothingToLearn")),
    ],
)
def test_it_is_false_after_three_steps_that_rewards_taught_nothing_in(
    steps: int | None, found: tuple[str, str] | None
) -> None:
    record = run(status(Phase.RUNNING))
    told = condition(planned(running(record, role_state=state(steps_without_rl=steps))), "RewardSignal")
    assert (told and (told["status"], told["reason"])) == found
    assert told is None or steps != 3 or told["message"].startswith("the last 3 steps had no episode")
