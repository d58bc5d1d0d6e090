import pytest

from echorl_operator.kube.connection import Connection
from echorl_operator.kube.events import EventLimits, Events
from echorl_operator.metrics import Metrics
from echorl_operator.observed.runs import RunKey, RunRecord
from echorl_testing.kube import faults
from echorl_testing.kube.fault_proxy import FaultProxy
from echorl_testing.kube.wire_api import WireApi

EVENTS = "/apis/events.k8s.io/v1/namespaces/ns/events"
RUN = RunRecord(RunKey("ns", "r"), "uid", "1", 1, 0.0, None, {}, {}, {})


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def events(connection: Connection, metrics: Metrics, now: list[float]) -> Events:
    limits = EventLimits(burst=3, refill_s=10, series_s=60)
    return Events(connection, "operator-0", metrics, limits=limits, clock=lambda: now[0])


def _posted(api: WireApi) -> list[dict]:
    return [body for (collection, _), body in api.objects.items() if collection == EVENTS]


async def test_an_event_is_about_the_run(events: Events, api: WireApi) -> None:
    await events.post(RUN, "Warning", "GangLost", "trainer-1 was evicted")
    (event,) = _posted(api)
    assert event["regarding"]["uid"] == "uid"
    assert (event["type"], event["reason"], event["note"]) == ("Warning", "GangLost", "trainer-1 was evicted")
    assert event["reportingController"] == "echorl.dev/operator"
    assert event["reportingInstance"] == "operator-0"


async def test_repetitions_become_a_series(events: Events, api: WireApi, now: list[float]) -> None:
    for _ in range(5):
        await events.post(RUN, "Normal", "A", "same")
    assert len([one for one in api.requests if one[0] in ("POST", "PATCH")]) == 1
    now[0] += 61
    await events.post(RUN, "Normal", "A", "same")
    (event,) = _posted(api)
    assert event["series"]["count"] == 6


async def test_an_operator_that_restarts_continues_the_series(
    events: Events, connection: Connection, metrics: Metrics, api: WireApi
) -> None:
    await events.post(RUN, "Normal", "A", "same")
    await Events(connection, "operator-1", Metrics()).post(RUN, "Normal", "A", "same")
    (event,) = _posted(api)
    assert event["series"]["count"] == 2


async def test_an_event_that_timed_out_of_the_server_is_made_anew(
    events: Events, api: WireApi, now: list[float]
) -> None:
    await events.post(RUN, "Normal", "A", "same")
    ((_, name),) = api.objects
    await api.remove(EVENTS, name)
    now[0] += 61
    await events.post(RUN, "Normal", "A", "same")
    (event,) = _posted(api)
    assert "series" not in event


async def test_one_run_cannot_flood(events: Events, api: WireApi, metrics: Metrics, now: list[float]) -> None:
    for number in range(10):
        await events.post(RUN, "Normal", "A", f"number {number}")
    assert len(_posted(api)) == 3
    dropped = {"result": "dropped"}
    assert metrics.registry.get_sample_value("echorl_operator_events_total", dropped) == 7
    now[0] += 10
    await events.post(RUN, "Normal", "A", "later")
    assert len(_posted(api)) == 4


async def test_a_failure_is_counted_and_the_next_one_posts(
    events: Events, proxy: FaultProxy, api: WireApi, metrics: Metrics, now: list[float]
) -> None:
    with proxy.fault(faults.fail(500)):
        await events.post(RUN, "Normal", "A", "same")
    assert metrics.registry.get_sample_value("echorl_operator_events_total", {"result": "failed"}) == 1
    now[0] += 61
    await events.post(RUN, "Normal", "A", "same")
    assert len(_posted(api)) == 1


async def test_long_messages_are_cut(events: Events, api: WireApi) -> None:
    await events.post(RUN, "Normal", "A", "ü" * 2000)
    (event,) = _posted(api)
    assert 1020 <= len(event["note"].encode()) <= 1024
