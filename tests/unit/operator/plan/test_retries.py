from typing import Any

from echorl_operator.observed.records import ChildRecord, Kind
from echorl_operator.observed.times import to_text
from echorl_operator.observed.warning_events import EventSubject, WarningEvent
from echorl_operator.plan import retries
from echorl_operator.plan.actions import RetryController
from echorl_operator.plan.builder import PlanBuilder
from echorl_operator.settings import Settings
from echorl_testing.operator.observed_worlds import NOW, meta, observed, run

REFUSED = WarningEvent(
    EventSubject("StatefulSet", "one-trainer"), "Warning", "FailedCreate", "exceeded quota: gpus", 3, NOW - 70, NOW - 5
)


def seen(blocked_for: float, *, asked_ago: float | None = None, failure: str = "") -> PlanBuilder:
    annotations = {} if asked_ago is None else {"echorl.dev/retry": to_text(NOW - asked_ago)}
    body: Any = f'{{"metadata": {{"annotations": {str(annotations).replace(chr(39), chr(34))}}}}}'.encode()
    kind, name = (Kind.DEPLOYMENT, "one-inference") if failure else (Kind.STATEFUL_SET, "one-trainer")
    child = ChildRecord(kind=kind, meta=meta(name), body=body, desired=2, failure=failure)
    blocked = {"type": "Blocked", "status": "True", "lastTransitionTime": to_text(NOW - blocked_for)}
    status = {"attempt": 1, "conditions": [blocked]}
    world = observed(run=run(status), children=(child,), warning_events=(REFUSED,))
    builder = PlanBuilder(world, Settings(operator_version="1"), "t")
    retries.retry_controllers(builder)
    return builder


def test_controllers_are_asked_once_they_wait_long() -> None:
    assert seen(29).actions == []
    assert seen(29).wakes == [NOW + 1]
    (asked,) = seen(31).actions
    assert asked == RetryController("StatefulSet", "one-trainer", "uid-one-trainer", str(to_text(NOW)))


def test_they_are_asked_every_half_minute_and_not_more_often() -> None:
    assert seen(500, asked_ago=20).actions == []
    assert seen(500, asked_ago=20).wakes == [NOW + 10]
    assert len(seen(500, asked_ago=30).actions) == 1


def test_a_time_to_come_is_no_time_that_they_were_asked_at() -> None:
    assert len(seen(31, asked_ago=-10_000_000).actions) == 1


def test_engines_too() -> None:
    (asked,) = seen(31, failure='pods "x" is forbidden: exceeded quota').actions
    assert (asked.kind, asked.name) == ("Deployment", "one-inference")
