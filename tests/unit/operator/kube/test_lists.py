import asyncio
import json
from collections.abc import Callable

import pytest

from echorl_operator.kube.connection import Connection
from echorl_operator.kube.lists import Stream, StreamSettings
from echorl_operator.kube.resources import POD
from echorl_operator.kube.store import Store
from echorl_operator.metrics import Metrics
from echorl_operator.observed import decode
from echorl_operator.observed.records import PodRecord
from echorl_operator.observed.runs import RunKey
from echorl_testing.kube import faults
from echorl_testing.kube.fault_proxy import FaultProxy
from echorl_testing.kube.wire_api import WireApi
from echorl_testing.waiting import until

PODS = "/api/v1/namespaces/ns/pods"
LABELS = {"labels": {"echorl.dev/run": "r", "echorl.dev/run-uid": "uid"}}
FAST = StreamSettings(page=2, watch_s=1.0, silence_s=3.0, first_wait_s=0.01, longest_wait_s=0.1)


class Watched:
    """One stream on one store, and what it told."""

    def __init__(self, connection: Connection, metrics: Metrics, settings: StreamSettings) -> None:
        self.changes: list[RunKey] = []
        self.failures: list[Exception] = []
        self.store: Store[PodRecord] = Store(self.changes.append)
        self.metrics = metrics
        self.project: Callable[[bytes], PodRecord] = decode.pod
        self.stream = Stream(
            connection,
            POD,
            "ns",
            store=self.store,
            project=lambda body: self.project(body),  # noqa: PLW0108 - a test exchanges it
            metrics=metrics,
            settings=settings,
            on_failure=self.failures.append,
        )

    def names(self) -> set[str]:
        return {pod.meta.name for pod in self.store}

    def relists(self, reason: str) -> float:
        value = self.metrics.registry.get_sample_value(
            "echorl_operator_watch_relists_total", {"resource": "pods", "reason": reason}
        )
        return value or 0.0


@pytest.fixture
def watched(connection: Connection, metrics: Metrics, start) -> Watched:
    found = Watched(connection, metrics, FAST)
    start(found.stream.run())
    return found


async def test_lists_in_pages_and_follows_changes(watched: Watched, api: WireApi) -> None:
    for name in ("a", "b", "c", "d", "e"):
        await api.set(PODS, name, metadata=LABELS)
    await until(watched.stream.synced.is_set)
    await until(lambda: watched.names() == {"a", "b", "c", "d", "e"})
    lists = [query for method, path, query, _, _ in api.requests if method == "GET" and "watch" not in query]
    assert all(query["limit"] == "2" for query in lists)
    assert all(query["labelSelector"] == "app.kubernetes.io/managed-by=echorl-operator" for query in lists)

    watched.changes.clear()
    await api.set(PODS, "f", metadata=LABELS)
    await api.remove(PODS, "a")
    await until(lambda: watched.names() == {"b", "c", "d", "e", "f"})
    assert watched.changes == [RunKey("ns", "r")] * 2


async def test_pages_are_read_to_the_end(connection: Connection, metrics: Metrics, api: WireApi, start) -> None:
    for name in ("a", "b", "c", "d", "e"):
        await api.set(PODS, name, metadata=LABELS)
    watched = Watched(connection, metrics, FAST)
    start(watched.stream.run())
    await until(watched.stream.synced.is_set)
    assert watched.names() == {"a", "b", "c", "d", "e"}
    lists = [query.get("continue") for method, _, query, _, _ in api.requests if "watch" not in query]
    assert lists == [None, "2", "4"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (faults.expire(times=3), "Gone"),
        (faults.stream_error(410, times=3), "Gone"),
        (faults.stream_error(500, times=3), "Unavailable"),
        (faults.stream_error(403, times=3), "Forbidden"),
        (faults.fail(503, faults.lists_and_watches, times=5), "Unavailable"),
        (faults.fail(403, faults.lists_and_watches, times=5), "Forbidden"),
        (faults.throttle(1, faults.lists_and_watches, times=5), "TooManyRequests"),
        (faults.drop(faults.lists_and_watches, times=5), "Unavailable"),
    ],
)
async def test_every_failure_leads_to_a_new_list(
    watched: Watched, proxy: FaultProxy, api: WireApi, fault: faults.Fault, reason: str
) -> None:
    await api.set(PODS, "a", metadata=LABELS)
    await until(lambda: watched.names() == {"a"})
    proxy.add(fault)
    proxy.end_watches()
    await until(lambda: fault.times == fault.hits)
    await api.set(PODS, "b", metadata=LABELS)
    await api.remove(PODS, "a")
    await until(lambda: watched.names() == {"b"})
    assert watched.relists(reason) >= 1
    assert watched.failures


@pytest.mark.parametrize("code", [410, 500, 504])
async def test_an_error_event_in_a_running_watch_leads_to_a_new_list(
    watched: Watched, proxy: FaultProxy, api: WireApi, code: int
) -> None:
    await until(lambda: len(proxy.running_watches) == 1)
    assert proxy.end_watches(code) == 1
    await until(lambda: watched.relists("Gone" if code == 410 else "Unavailable") == 1)
    await api.set(PODS, "a", metadata=LABELS)
    await until(lambda: watched.names() == {"a"})


async def test_objects_that_went_during_an_outage_are_reported(
    watched: Watched, proxy: FaultProxy, api: WireApi
) -> None:
    await api.set(PODS, "a", metadata=LABELS)
    await until(lambda: watched.names() == {"a"})
    with proxy.fault(faults.fail(500)) as outage:
        proxy.end_watches()
        await api.remove(PODS, "a")
        api.history.clear()
        watched.changes.clear()
        await until(lambda: outage.hits >= 3)
    await until(lambda: watched.names() == set())
    assert watched.changes == [RunKey("ns", "r")]


async def test_a_silent_watch_is_noticed(watched: Watched, proxy: FaultProxy, api: WireApi) -> None:
    await until(lambda: len(proxy.running_watches) == 1)
    with proxy.fault(faults.silence()):
        await api.set(PODS, "a", metadata=LABELS)
        await until(lambda: watched.names() == {"a"})
    assert watched.relists("Unavailable") >= 1


async def test_watches_without_bookmarks_are_no_sign_of_life(watched: Watched, api: WireApi) -> None:
    api.bookmark_s = 0
    await until(lambda: watched.relists("Silent") == 1)


async def test_a_watch_that_ends_is_resumed_without_a_list(watched: Watched, api: WireApi) -> None:
    await until(lambda: sum("watch" in query for _, _, query, _, _ in api.requests) >= 3)
    assert sum("watch" not in query for _, _, query, _, _ in api.requests) == 1
    versions = [query["resourceVersion"] for _, _, query, _, _ in api.requests if "watch" in query]
    assert versions == ["100"] * len(versions)


async def test_an_error_of_our_own_code_is_survived_and_told(watched: Watched, api: WireApi) -> None:
    def broken(_: bytes) -> PodRecord:
        raise KeyError("bug")

    await until(watched.stream.synced.is_set)
    watched.project = broken
    await api.set(PODS, "a", metadata=LABELS)
    await until(lambda: watched.relists("KeyError") >= 2)
    watched.project = decode.pod
    await until(lambda: watched.names() == {"a"})


async def test_a_storm_of_expired_watches_is_no_busy_loop(watched: Watched, proxy: FaultProxy) -> None:
    await until(lambda: len(proxy.running_watches) == 1)
    with proxy.fault(faults.expire()) as storm:
        proxy.end_watches()
        await until(lambda: storm.hits >= 4)
        before, hits = asyncio.get_running_loop().time(), storm.hits
        await until(lambda: storm.hits >= hits + 4)
        took_s = asyncio.get_running_loop().time() - before
    # The first of the four may have begun to wait before.
    assert took_s >= 3 * FAST.longest_wait_s / 2, "back-off has reached its ceiling"


async def test_the_age_grows_while_nothing_is_heard(watched: Watched, proxy: FaultProxy) -> None:
    await until(lambda: len(proxy.running_watches) == 1)
    with proxy.fault(faults.fail(500)):
        proxy.end_watches()
        await until(lambda: watched.stream.age() > 0.5)
    await until(lambda: watched.stream.age() < 0.3)


async def test_a_watch_that_is_behind_does_not_undo_newer_records(
    watched: Watched, proxy: FaultProxy, api: WireApi
) -> None:
    await until(lambda: len(proxy.running_watches) == 1)
    with proxy.fault(faults.delay(0.3)) as lag:
        old = await api.set(PODS, "a", metadata=LABELS, status={"phase": "Pending"})
        new = await api.set(PODS, "a", metadata=LABELS, status={"phase": "Running"})
        assert old["metadata"]["resourceVersion"] < new["metadata"]["resourceVersion"]
        watched.store.put(decode.pod(_json(new)))
        await until(lambda: lag.hits >= 2)
        await until(
            lambda: (
                watched.metrics.registry.get_sample_value(
                    "echorl_operator_watch_events_total", {"resource": "pods", "type": "ADDED"}
                )
                == 1
            )
        )
        found = watched.store.get("ns", "a")
        assert found is not None
        assert found.phase == "Running"


def _json(body: object) -> bytes:
    return json.dumps(body).encode()
