"""Every phase with every problem: what kstatus, and who goes by it, makes of the status that is written."""

from dataclasses import replace
from itertools import product

import pytest

from echorl_core.names import Phase
from echorl_operator.names import NO_STEP
from echorl_operator.observed.memory import Memory
from echorl_operator.status.conditions import PROBLEMS, begun
from echorl_operator.status.pass_report import PassReport
from echorl_operator.status.report import status_of
from echorl_testing.operator.kstatus import Judgement, judged
from echorl_testing.operator.observed_worlds import observed, run

OF_PHASE: dict[Phase, Judgement] = {
    Phase.PENDING: "InProgress",
    Phase.PREPARING: "InProgress",
    Phase.STARTING: "InProgress",
    Phase.RUNNING: "Current",
    Phase.RESTARTING: "InProgress",
    Phase.SUSPENDED: "InProgress",
    Phase.SUCCEEDED: "Current",
    Phase.FAILED: "Failed",
}
REASONS = {"Blocked": "Unschedulable", "InvalidSpec": "Invalid", "NodeLost": "PodsHang", "Stalled": NO_STEP}


def written(phase: Phase, problem: str | None, before: dict[str, object] | None = None) -> dict[str, object]:
    """A status of generation 4."""
    problems = {} if problem is None else {problem: (REASONS[problem], "why")}
    said = PassReport(phase, "NonFinite" if phase is Phase.FAILED else "", "what", problems, None, 1, 1)
    memory = Memory(phase=phase, attempt=1, rendered_generation=2)
    return status_of(observed(run=replace(run(before), generation=4)), memory, said)


@pytest.mark.parametrize(("phase", "problem"), product(Phase, (None, *PROBLEMS)))
def test_a_run_is_judged_by_its_phase_and_what_is_wrong(phase: Phase, problem: str | None) -> None:
    status = written(phase, problem)
    expected = "Failed" if problem in ("InvalidSpec", "Stalled") else OF_PHASE[phase]
    assert judged({"metadata": {"generation": 4}, "status": status}) == expected
    assert judged({"metadata": {"generation": 5}, "status": status}) == "InProgress"


def test_a_run_that_goes_on_after_an_edit_is_stalled_no_more() -> None:
    failed = written(Phase.FAILED, None)
    assert judged({"metadata": {"generation": 4}, "status": written(Phase.RUNNING, None, failed)}) == "Current"


@pytest.mark.parametrize(
    ("phase", "problem", "told"),
    [
        (Phase.FAILED, None, []),
        (Phase.RUNNING, "InvalidSpec", ["InvalidSpec"]),
        (Phase.RUNNING, "Stalled", ["Stalled"]),
        (Phase.FAILED, "Stalled", ["Stalled"]),
    ],
)
def test_an_event_tells_of_a_problem_once(phase: Phase, problem: str | None, told: list[str]) -> None:
    assert [condition["type"] for condition in begun((), written(phase, problem)["conditions"])] == told  # type: ignore[arg-type]
