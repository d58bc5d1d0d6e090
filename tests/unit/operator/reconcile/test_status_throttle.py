from typing import Any

from echorl_operator.observed.runs import RunKey
from echorl_operator.plan.actions import Note, Plan
from echorl_operator.reconcile.status_throttle import StatusThrottle

ONE, OTHER = RunKey("ns", "one"), RunKey("ns", "other")
BEFORE = {"phase": "Starting", "attempt": 1, "message": "2 of 3 pods are ready"}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def made(**changes: Any) -> Plan:
    plan: dict[str, Any] = {key: changes.pop(key) for key in ("fence", "notes") if key in changes}
    return Plan(status=BEFORE | changes, **plan)


def test_words_alone_wait_for_their_turn() -> None:
    clock = Clock()
    throttle = StatusThrottle(1.0, clock)
    ready = {"type": "TrainerReady", "status": "True"}
    told = made(message="3 of 3 pods are ready", roles={"trainer": {"ready": 3}}, conditions=[ready])
    assert throttle.wait_s(ONE, BEFORE, told) == 0
    throttle.written(ONE)
    clock.now += 0.25
    assert throttle.wait_s(ONE, BEFORE, told) == 0.75
    assert throttle.wait_s(OTHER, BEFORE, told) == 0
    clock.now += 0.75
    assert throttle.wait_s(ONE, BEFORE, told) == 0


def test_what_later_passes_rest_on_and_what_people_wait_for_is_written_at_once() -> None:
    throttle = StatusThrottle(1.0, Clock())
    throttle.written(ONE)
    assert throttle.wait_s(ONE, BEFORE, made(message="x")) == 1
    for plan in (
        made(phase="Running"),
        made(attempt=2),
        made(control={"preparedAttempt": 1}),
        made(conditions=[{"type": "Blocked", "status": "False"}]),
        made(message="x", fence=True),
        made(message="x", notes=(Note("Normal", "Edited", "maxSteps changed"),)),
    ):
        assert throttle.wait_s(ONE, BEFORE, plan) == 0
    throttle.forget(ONE)
    assert throttle.wait_s(ONE, BEFORE, made(message="x")) == 0
