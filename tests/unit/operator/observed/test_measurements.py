"""From an orchestrator's answers to what the number of engines rests on."""

from typing import Any

import msgspec
import pytest

from echorl_operator.observed.measurements import Measurement, measurement
from echorl_operator.orchestrators.run_state import read_answer, role_state

TRAINER = {"useful": 50.0, "redone": 5, "waiting": 30, "publishing": 2, "saving": 1, "starting": 99, "undecided": 7}
ENGINES = {"useful": 80.0, "stale": 20, "undecided": 15, "publishing": 5, "waiting": 60, "starting": 9, "restarting": 4}
STATES = ("serving", "updating", "syncing", "starting", "quarantined", "lost")


def answer(measured_at: str = "2026-11-01T10:00:00+00:00", **goodput: Any) -> Any:
    told = {"measured_at": measured_at, "gpu_seconds": {"trainer": TRAINER, "inference": ENGINES}, **goodput}
    engines = [{"name": f"e:{number}", "state": state} for number, state in enumerate(STATES)]
    body = {"uid": "u", "attempt": 1, "phase": "Running", "step": 7, "engines": engines, "goodput": told}
    return read_answer(msgspec.json.encode(body))


def test_what_counts_is_time_at_work() -> None:
    assert measurement(answer(queued=2.5, kv_usage=0.75)) == Measurement(
        at=1793527200.0,
        step=7,
        engines=2,
        trainer_s=50 + 5 + 30 + 2 + 1,
        trainer_waiting_s=30,
        engines_s=80 + 20 + 15 + 5 + 60,
        engines_waiting_s=60,
        queued=2.5,
        kv_usage=0.75,
    )


@pytest.mark.parametrize("when", ["", "yesterday", "2026-11-01T10:00:00"])
def test_a_time_that_cannot_be_read_measures_nothing(when: str) -> None:
    assert measurement(answer(when)) is None


def test_each_is_kept_once_and_a_new_orchestrator_begins_anew() -> None:
    first = role_state(answer(), before=None, now=0.0)
    again = role_state(answer(), before=first, now=1.0)
    later = role_state(answer("2026-11-01T10:01:00+00:00"), before=again, now=60.0)
    assert [len(one.measured) for one in (first, again, later)] == [1, 1, 2]
    assert len(role_state(answer(), before=None, now=61.0).measured) == 1
