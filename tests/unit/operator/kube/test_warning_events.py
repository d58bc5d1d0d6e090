import json
from typing import Any

import pytest

from echorl_operator.kube.connection import Connection
from echorl_operator.kube.rare_reads import ReaderSettings
from echorl_operator.kube.warning_events import WarningEventReader
from echorl_operator.observed import decode
from echorl_operator.observed.runs import RunKey
from echorl_operator.observed.warning_events import EventSubject
from echorl_testing.kube import faults
from echorl_testing.kube.fault_proxy import FaultProxy
from echorl_testing.kube.wire_api import WireApi
from echorl_testing.operator.observed_worlds import run

EVENTS = "/api/v1/namespaces/ns/events"
SET = EventSubject("StatefulSet", "one-trainer")
KEY = RunKey("ns", "one")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def event(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "involvedObject": {"kind": "StatefulSet", "name": "one-trainer", "uid": "u"},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": "no\n",
        "count": 4,
        "firstTimestamp": "2026-01-02T03:04:05Z",
        "lastTimestamp": "2026-01-02T03:05:05Z",
        "eventTime": None,
        "reportingComponent": "statefulset-controller",
    }
    return fields | changes


def test_events_of_both_apis_are_read() -> None:
    def decoded(**changes: Any) -> Any:
        meta = {"name": "e", "creationTimestamp": "2026-01-02T03:04:00Z"}
        return decode.warning_event(json.dumps({"metadata": meta, **event(**changes)}).encode())

    old = decoded()
    assert (old.subject, old.reason, old.message, old.count) == (SET, "FailedCreate", "no", 4)
    assert (old.last - old.first, old.source) == (60.0, "statefulset-controller")
    times = {"firstTimestamp": None, "lastTimestamp": None, "count": None}
    new = decoded(**times, eventTime="2026-01-02T03:04:05.250000Z")
    assert (new.count, new.first, new.last) == (1, old.first + 0.25, old.first + 0.25)
    series = decoded(
        **times, eventTime="2026-01-02T03:04:05Z", series={"count": 7, "lastObservedTime": "2026-01-02T03:05:05Z"}
    )
    assert (series.count, series.first, series.last) == (7, old.first, old.last)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def complaints(connection: Connection, clock: Clock) -> WarningEventReader:
    return WarningEventReader(connection, ReaderSettings(first_s=2, again_s=5, longest_s=20), clock=clock)


def reads(api: WireApi) -> int:
    return sum(path.startswith(EVENTS) for _, path, *_ in api.requests)


async def test_events_are_read_late_and_ever_more_rarely(
    complaints: WarningEventReader, clock: Clock, api: WireApi
) -> None:
    await api.set(EVENTS, "e", **event())
    assert not await complaints.ask(run(), [SET])
    assert (reads(api), complaints.due_s(KEY)) == (0, 2.0)
    waits = []
    for _ in range(5):
        clock.now += complaints.due_s(KEY) or 0.0
        assert await complaints.ask(run(), [SET])
        waits.append(complaints.due_s(KEY))
    assert waits == [5.0, 10.0, 20.0, 20.0, 20.0]
    assert reads(api) == 5
    assert [one.reason for one in complaints.latest(run())] == ["FailedCreate"]


async def test_what_is_right_again_is_forgotten(complaints: WarningEventReader, clock: Clock, api: WireApi) -> None:
    await api.set(EVENTS, "e", **event())
    await complaints.ask(run(), [SET])
    clock.now += 2
    await complaints.ask(run(), [SET])
    assert complaints.latest(run())
    assert not await complaints.ask(run(), [])
    assert (complaints.latest(run()), complaints.due_s(KEY)) == ((), None)


async def test_a_read_that_fails_fails_no_pass(
    complaints: WarningEventReader, clock: Clock, api: WireApi, proxy: FaultProxy
) -> None:
    await api.set(EVENTS, "e", **event())
    await complaints.ask(run(), [SET])
    clock.now += 2
    with proxy.fault(faults.fail(403)):
        assert await complaints.ask(run(), [SET])
    assert complaints.latest(run()) == ()
    clock.now += 5
    await complaints.ask(run(), [SET])
    assert len(complaints.latest(run())) == 1
