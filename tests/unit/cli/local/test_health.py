import pytest

from echorl_cli.local.health import Quarantines, Record
from echorl_cli.local.launch import Limits
from echorl_core.names import Role
from echorl_core.wire.run_state import EngineView

LIMITS = Limits(unhealthy=100.0, engine_unhealthy=60.0, start=300.0)


@pytest.mark.parametrize(("role", "limit"), [(Role.INFERENCE, 60), (Role.ORCHESTRATOR, 100), (Role.TRAINER, 100)])
def test_a_process_that_was_good_may_be_bad_for_its_limit(role: Role, limit: int) -> None:
    record = Record(since=0.0)
    record.note(None, 10.0)
    record.note("503: none has ended", 11.0)
    assert record.verdict(role, LIMITS, 10.0 + limit) is None
    verdict = record.verdict(role, LIMITS, 11.0 + limit)
    assert verdict == f"unhealthy for {limit + 1} s (limit {limit} s): 503: none has ended"


def test_a_good_answer_starts_the_time_anew() -> None:
    record = Record(since=0.0)
    record.note(None, 10.0)
    record.note("gone", 60.0)
    record.note(None, 69.0)
    assert record.verdict(Role.INFERENCE, LIMITS, 120.0) is None


def test_a_process_that_starts_has_longer() -> None:
    record = Record(since=0.0)
    record.note("connection refused", 200.0)
    assert record.verdict(Role.INFERENCE, LIMITS, 299.0) is None
    assert record.verdict(Role.INFERENCE, LIMITS, 301.0) == "unhealthy for 301 s (limit 300 s): connection refused"


def engines(state: str) -> list[EngineView]:
    return [EngineView(name="a:1", state=state, error="probe differs"), EngineView(name="b:2", state="serving")]


def test_an_engine_in_quarantine_for_too_long_is_overdue_once() -> None:
    quarantines = Quarantines(300.0)
    assert quarantines.overdue(engines("quarantined"), 0.0) == {}
    assert quarantines.overdue(engines("syncing"), 200.0) == {}
    assert quarantines.overdue(engines("quarantined"), 301.0) == {"a:1": "quarantined for 301 s: probe differs"}
    assert quarantines.overdue(engines("quarantined"), 302.0) == {}


@pytest.mark.parametrize("state", ["serving", "lost", "starting"])
def test_an_engine_that_came_back_or_is_new_is_not_overdue(state: str) -> None:
    quarantines = Quarantines(300.0)
    quarantines.overdue(engines("quarantined"), 0.0)
    assert quarantines.overdue(engines(state), 200.0) == {}
    assert quarantines.overdue(engines("quarantined"), 301.0) == {}
