"""What judges fault campaigns finds what must never be."""

from typing import Any

import msgspec

from echorl_operator import names
from echorl_testing.kube.watch_history import Change
from echorl_testing.operator.gang_oracle import attempts_admitted, gang_problems, made_twice


def pod(version: int, name: str, attempt: int, *, gated: bool = False, type_: str = "MODIFIED") -> Change:
    labels = {names.LABEL_ROLE: "trainer", names.LABEL_RUN_UID: "run", names.LABEL_ATTEMPT: str(attempt)}
    gates = [{"name": names.SCHEDULING_GATE}] if gated else []
    found = {"metadata": {"name": name, "labels": labels}, "spec": {"schedulingGates": gates}}
    return change(version, type_, "Pod", name, f"{name} of {attempt}", found)


def status(version: int, admitted: int) -> Change:
    return change(version, "MODIFIED", names.KIND, "one", "run", {"status": {"control": {"admittedAttempt": admitted}}})


def change(version: int, type_: str, kind: str, name: str, uid: str, found: dict[str, Any]) -> Change:
    return Change(version, type_, kind, "ns", name, uid, msgspec.json.encode(found))


FIRST = [
    pod(1, "t-0", 1, gated=True),
    pod(2, "t-1", 1, gated=True),
    status(3, admitted=1),
    pod(4, "t-0", 1),
    pod(5, "t-1", 1),
]
GONE = [pod(6, "t-0", 1, type_="DELETED"), pod(7, "t-1", 1, type_="DELETED")]


def test_one_attempt_after_the_other_is_right():
    life = [*FIRST, *GONE, pod(8, "t-0", 2, gated=True), status(9, admitted=2), pod(10, "t-0", 2)]
    assert gang_problems(life) == []
    assert attempts_admitted(life) == [1, 1, 2]


def test_two_attempts_at_once_are_found():
    (problem,) = gang_problems([*FIRST, GONE[0], status(8, admitted=2), pod(9, "t-0", 2)])
    assert problem == "t-0 of attempt 2 was let through beside pods of attempts [1]"


def test_a_pod_that_status_does_not_admit_is_found():
    (problem,) = gang_problems([*FIRST, *GONE, pod(8, "t-0", 2)])
    assert problem == "t-0 of attempt 2 was let through while status admits attempt 1"


def test_a_child_that_is_made_twice_is_found():
    made = [change(version, "ADDED", "Service", "one-trainer", f"uid-{version}", {}) for version in (1, 2)]
    again = change(3, "MODIFIED", "Service", "one-trainer", "uid-2", {})
    assert made_twice([made[0]]) == []
    assert made_twice([*made, again]) == ["Service one-trainer was made 2 times"]
