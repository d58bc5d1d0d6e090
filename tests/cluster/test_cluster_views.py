"""What the operator sees of a real API server, whatever lies in between."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from echorl_operator.kube.cache import Cache
from echorl_operator.kube.connection import Connection
from echorl_operator.kube.lists import StreamSettings
from echorl_operator.kube.resources import RUN
from echorl_operator.kube.writer import Writer
from echorl_operator.metrics import Metrics
from echorl_operator.observed.runs import RunKey
from echorl_testing import faults
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.credentials import Connection as ClusterConnection
from echorl_testing.fault_proxy import FaultProxy
from echorl_testing.operator_io import BRISK, SYNCED_S, Io, config_map, opened
from echorl_testing.run_objects import install_crd, wait_until_served
from echorl_testing.waiting import until


@pytest.fixture(scope="module", autouse=True)
def crd(api: Api) -> dict[str, Any]:
    return install_crd(api)


@pytest.fixture
async def io(connection: ClusterConnection, namespace: str, tmp_path: Path) -> AsyncIterator[Io]:
    async with opened(connection.kubeconfig, namespace, tmp_path) as found:
        yield found


@pytest.fixture
def proxy(io: Io) -> FaultProxy:
    return io.proxy


@pytest.fixture
def link(io: Io) -> Connection:
    return io.link


@pytest.fixture
def cache(io: Io) -> Cache:
    return io.cache


@pytest.fixture
def writer(io: Io) -> Writer:
    return io.writer


@pytest.fixture
def changes(io: Io) -> list[RunKey]:
    return io.changes


async def test_many_objects_come_in_pages(link: Connection, api: Api, namespace: str, proxy: FaultProxy) -> None:
    for number in range(25):
        api.create(f"/api/v1/namespaces/{namespace}/configmaps", config_map(f"m{number}"))
    settings = StreamSettings(page=10, watch_s=4.0, silence_s=2.0)
    cache = Cache(link, [namespace], on_change=lambda _: None, metrics=Metrics(), settings=settings)
    running = asyncio.ensure_future(cache.run())
    await cache.wait_synced(SYNCED_S)
    assert len(cache.children_of("run-uid")) == 25
    listed = faults.of(verb="list", resource="configmaps")
    pages = [one.request for one in proxy.records if listed(one.request) and one.request.query["limit"] == "10"]
    assert [bool(page.query.get("continue")) for page in pages] == [False, True, True]
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_idle_watches_live_on_bookmarks_and_need_no_list(cache: Cache, proxy: FaultProxy) -> None:
    lists = sum(one.request.verb == "list" for one in proxy.records)
    watches = [one for one in proxy.records if one.request.verb == "watch"]
    oldest = max(stream.age() for stream in cache.streams)
    await until(lambda: sum(one.request.verb == "watch" for one in proxy.records) >= 3 * len(watches))
    # A bookmark may be late; without any the next thing would be a list.
    await until(lambda: max(stream.age() for stream in cache.streams) < oldest + BRISK.watch_s + BRISK.silence_s)
    assert sum(one.request.verb == "list" for one in proxy.records) == lists


@pytest.mark.parametrize("code", [410, 500, 403])
async def test_error_events_are_survived(
    cache: Cache, proxy: FaultProxy, api: Api, namespace: str, changes: list[RunKey], code: int
) -> None:
    await until(lambda: len(proxy.running_watches) == len(cache.streams))
    assert proxy.end_watches(code) == len(cache.streams)
    api.create(f"/api/v1/namespaces/{namespace}/configmaps", config_map("a"))
    await until(lambda: len(cache.children_of("run-uid")) == 1)
    assert changes == [RunKey(namespace, "r")]


@pytest.mark.parametrize(
    "make",
    [
        lambda: faults.fail(500),
        lambda: faults.fail(403),
        lambda: faults.throttle(1),
        faults.drop,
        faults.expire,
        faults.silence,
        lambda: faults.hang(faults.watches),
    ],
)
async def test_views_come_right_after_an_outage(
    cache: Cache, proxy: FaultProxy, api: Api, namespace: str, make: Callable[[], faults.Fault]
) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    api.create(maps, config_map("before"))
    await until(lambda: len(cache.children_of("run-uid")) == 1)
    await until(lambda: len(proxy.running_watches) == len(cache.streams))
    with proxy.fault(make()) as outage:
        proxy.end_watches()
        api.delete(f"{maps}/before")
        api.create(maps, config_map("after"))
        await until(lambda: outage.hits >= 2 * len(cache.streams))
    await until(lambda: [child.meta.name for child in cache.children_of("run-uid")] == ["after"])


async def test_a_child_that_lost_its_label_comes_back(cache: Cache, writer: Writer, api: Api, namespace: str) -> None:
    await writer.apply(namespace, config_map("a"))
    path = f"/api/v1/namespaces/{namespace}/configmaps/a"
    for restore in (True, False):
        api.patch(path, {"metadata": {"labels": {"app.kubernetes.io/managed-by": "somebody"}}})
        await until(lambda: cache.children_of("run-uid") == ())
        if restore:
            await writer.apply(namespace, config_map("a"))
        else:
            api.patch(path, {"metadata": {"labels": {"app.kubernetes.io/managed-by": "echorl-operator"}}})
        await until(lambda: len(cache.children_of("run-uid")) == 1)


async def test_a_stale_view_never_goes_back(cache: Cache, writer: Writer, proxy: FaultProxy, namespace: str) -> None:
    seen: list[str] = []
    with proxy.fault(faults.delay(0.5)) as lag:
        for number in range(5):
            await writer.apply(namespace, config_map("a", x=str(number)))
            (child,) = cache.children_of("run-uid")
            seen.append(json.loads(child.body)["data"]["x"])
        await until(lambda: lag.hits >= 5)
        (child,) = cache.children_of("run-uid")
        seen.append(json.loads(child.body)["data"]["x"])
    assert seen == ["0", "1", "2", "3", "4", "4"]


async def test_an_api_server_that_is_killed_and_comes_back(
    control_plane: Cluster, cache: Cache, api: Api, namespace: str
) -> None:
    await asyncio.to_thread(control_plane.stop_component, "kube-apiserver", number=signal.SIGKILL)
    await until(lambda: min(stream.age() for stream in cache.streams) > 1)
    await asyncio.to_thread(control_plane.ensure_control_plane)
    await asyncio.to_thread(wait_until_served, api)
    api.create(f"/api/v1/namespaces/{namespace}/configmaps", config_map("a"))
    await until(lambda: len(cache.children_of("run-uid")) == 1)
    await until(lambda: max(stream.age() for stream in cache.streams) < BRISK.watch_s + BRISK.silence_s)


async def test_watching_the_whole_cluster(link: Connection, api: Api, make_namespace: Callable[..., str]) -> None:
    changes: list[RunKey] = []
    cache = Cache(link, None, on_change=changes.append, metrics=Metrics(), settings=BRISK)
    running = asyncio.ensure_future(cache.run())
    await cache.wait_synced(SYNCED_S)
    places = [make_namespace() for _ in range(2)]
    for place in places:
        api.create(f"/api/v1/namespaces/{place}/configmaps", config_map("a"))
    await until(lambda: {RunKey(place, "r") for place in places} <= set(changes))
    assert {child.meta.namespace for child in cache.children_of("run-uid")} >= set(places)
    assert RUN.path(None) == "/apis/echorl.dev/v1alpha1/echorlruns"
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
