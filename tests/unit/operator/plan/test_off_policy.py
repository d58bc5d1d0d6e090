"""The condition that samples are no older than the manifest allows."""

from typing import Any

import pytest

from echorl_core.names import Phase
from echorl_testing.operator.observed_worlds import run
from echorl_testing.operator.planned_worlds import condition, planned, running, state, status


@pytest.mark.parametrize(
    ("algorithm", "staleness", "holds", "limit"),
    [
        (None, 2, "True", 2),
        (None, 3, "False", 2),
        ({"groupSize": 4}, 3, "False", 2),
        ({"maxStaleness": None}, 2, "True", 2),
        ({"maxStaleness": 0}, 1, "False", 0),
        ({"maxStaleness": 5}, 3, "True", 5),
    ],
)
def test_it_is_told_whether_or_not_the_bound_is_written_out(
    algorithm: dict[str, Any] | None, staleness: int, holds: str, limit: int
) -> None:
    spec = {} if algorithm is None else {"algorithm": algorithm}
    record = run(status(Phase.RUNNING), **spec)
    found = condition(planned(running(record, role_state=state(staleness_max=staleness))), "OffPolicyBounded")
    assert found is not None
    assert (found["status"], found["message"]) == (holds, f"samples are up to {staleness} versions old, of {limit}")
