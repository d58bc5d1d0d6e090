"""What the operator sees of a real API server, whatever lies in between."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from echorl_operator.kube import credentials
from echorl_operator.kube.cache import Cache
from echorl_operator.kube.connection import Connection
from echorl_operator.kube.lists import StreamSettings
from echorl_operator.kube.resources import RUN
from echorl_operator.metrics import Metrics
from echorl_operator.observed.runs import RunKey
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.credentials import Connection as ClusterConnection
from echorl_testing.kube import faults
from echorl_testing.kube.run_objects import install_crd, wait_until_served
from echorl_testing.operator.lives_together import Together
from echorl_testing.operator.operator_io import BRISK, SYNCED_S, Io, config_map, opened
from echorl_testing.waiting import until


@dataclass(frozen=True)
class View:
    """What a test looks at."""

    io: Io
    api: Api
    namespace: str

    @property
    def maps(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/configmaps"

    def names(self) -> list[str]:
        """Of the run's children that are seen."""
        return [child.meta.name for child in self.io.cache.children_of("run-uid")]


@asynccontextmanager
async def viewed(api: Api, connection: ClusterConnection, namespace: str) -> AsyncIterator[View]:
    with TemporaryDirectory() as folder:
        async with opened(connection.kubeconfig, namespace, Path(folder)) as io:
            yield View(io, api, namespace)


together = Together(viewed, at_once=6)


@together
async def test_many_objects_come_in_pages(view: View) -> None:
    for number in range(25):
        await asyncio.to_thread(view.api.create, view.maps, config_map(f"m{number}"))
    settings = StreamSettings(page=10, watch_s=4.0, silence_s=2.0)
    cache = Cache(view.io.link, [view.namespace], on_change=lambda _: None, metrics=Metrics(), settings=settings)
    running = asyncio.ensure_future(cache.run())
    await cache.wait_synced(SYNCED_S)
    assert len(cache.children_of("run-uid")) == 25
    listed = faults.of(verb="list", resource="configmaps")
    pages = [one.request for one in view.io.proxy.records if listed(one.request) and one.request.query["limit"] == "10"]
    assert [bool(page.query.get("continue")) for page in pages] == [False, True, True]
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@pytest.mark.campaign  # its bound is of a machine that keeps up
@together
async def test_idle_watches_live_on_bookmarks_and_need_no_list(view: View) -> None:
    await told_of_a_change_elsewhere(view)
    cache, proxy, began = view.io.cache, view.io.proxy, time.monotonic()
    lists = sum(one.request.verb == "list" for one in proxy.records)
    watches = [one for one in proxy.records if one.request.verb == "watch"]
    oldest = max(stream.age() for stream in cache.streams)
    await until(lambda: sum(one.request.verb == "watch" for one in proxy.records) >= 3 * len(watches))
    # A bookmark may be late; without any the next thing would be a list.
    await until(lambda: max(stream.age() for stream in cache.streams) < oldest + BRISK.watch_s + BRISK.silence_s)
    # Where the machine is slow for long enough each stream may have become doubtful and been listed.
    doubtful = int((time.monotonic() - began + oldest) / BRISK.doubtful_s)
    relists = [
        one for metric in view.io.metrics.registry.collect() if "relists" in metric.name for one in metric.samples
    ]
    assert sum(one.request.verb == "list" for one in proxy.records) <= lists + doubtful * len(cache.streams), relists


async def told_of_a_change_elsewhere(view: View) -> None:
    """Wait for a bookmark: the server sends one where it knows of something newer of the kind, in any namespace."""
    registry, labels = view.io.metrics.registry, {"resource": "configmaps", "type": "BOOKMARK"}

    def bookmarks() -> float:
        return registry.get_sample_value("echorl_operator_watch_events_total", labels) or 0.0

    told, elsewhere = bookmarks(), "/api/v1/namespaces/default/configmaps"
    await asyncio.to_thread(view.api.create, elsewhere, {"metadata": {"name": f"of-{view.namespace}"}})
    try:
        await until(lambda: bookmarks() > told)
    finally:
        await asyncio.to_thread(view.api.delete, f"{elsewhere}/of-{view.namespace}")
    assert view.names() == []


@together.each(["410", "500", "403"])
async def test_error_events_are_survived(view: View, code: str) -> None:
    cache, proxy = view.io.cache, view.io.proxy
    await until(lambda: len(proxy.running_watches) == len(cache.streams))
    assert proxy.end_watches(int(code)) == len(cache.streams)
    await asyncio.to_thread(view.api.create, view.maps, config_map("a"))
    await until(lambda: len(view.names()) == 1)
    assert view.io.changes == [RunKey(view.namespace, "r")]


OUTAGES: dict[str, Callable[[], faults.Fault]] = {
    "500": lambda: faults.fail(500),
    "403": lambda: faults.fail(403),
    "429": lambda: faults.throttle(1),
    "dropped connections": faults.drop,
    "watches expire": faults.expire,
    "watches are silent": faults.silence,
    "watches hang": lambda: faults.hang(faults.watches),
}


@together.each(list(OUTAGES))
async def test_views_come_right_after_an_outage(view: View, name: str) -> None:
    cache, proxy = view.io.cache, view.io.proxy
    await asyncio.to_thread(view.api.create, view.maps, config_map("before"))
    await until(lambda: len(view.names()) == 1)
    await until(lambda: len(proxy.running_watches) == len(cache.streams))
    with proxy.fault(OUTAGES[name]()) as outage:
        proxy.end_watches()
        await asyncio.to_thread(view.api.delete, f"{view.maps}/before")
        await asyncio.to_thread(view.api.create, view.maps, config_map("after"))
        await until(lambda: outage.hits >= 2 * len(cache.streams))
    await until(lambda: view.names() == ["after"])


@together
async def test_a_child_that_lost_its_label_comes_back(view: View) -> None:
    writer, namespace = view.io.writer, view.namespace
    await writer.apply(namespace, config_map("a"))
    label = "app.kubernetes.io/managed-by"
    for restore in (True, False):
        lost = {"metadata": {"labels": {label: "somebody"}}}
        await asyncio.to_thread(view.api.patch, f"{view.maps}/a", lost)
        await until(lambda: view.names() == [])
        if restore:
            await writer.apply(namespace, config_map("a"))
        else:
            found = {"metadata": {"labels": {label: "echorl-operator"}}}
            await asyncio.to_thread(view.api.patch, f"{view.maps}/a", found)
        await until(lambda: len(view.names()) == 1)


@together
async def test_a_stale_view_never_goes_back(view: View) -> None:
    cache, writer = view.io.cache, view.io.writer
    seen: list[str] = []
    with view.io.proxy.fault(faults.delay(0.5)) as lag:
        for number in range(5):
            await writer.apply(view.namespace, config_map("a", x=str(number)))
            (child,) = cache.children_of("run-uid")
            seen.append(json.loads(child.body)["data"]["x"])
        await until(lambda: lag.hits >= 5)
        (child,) = cache.children_of("run-uid")
        seen.append(json.loads(child.body)["data"]["x"])
    assert seen == ["0", "1", "2", "3", "4", "4"]


async def test_an_api_server_that_is_killed_and_comes_back(
    control_plane: Cluster, api: Api, connection: ClusterConnection, namespace: str
) -> None:
    install_crd(api)
    async with viewed(api, connection, namespace) as view:
        cache = view.io.cache
        await asyncio.to_thread(control_plane.stop_component, "kube-apiserver", number=signal.SIGKILL)
        await until(lambda: min(stream.age() for stream in cache.streams) > 1)
        lost = time.monotonic()
        await asyncio.to_thread(control_plane.ensure_control_plane)
        await asyncio.to_thread(wait_until_served, api)
        await asyncio.to_thread(api.create, view.maps, config_map("a"))
        await until(lambda: len(view.names()) == 1)
        # Not all of them at one moment lately: a server may have nothing to tell of a kind that does not change.
        await until(lambda: min(stream.last_heard for stream in cache.streams) > lost)


async def test_watching_the_whole_cluster(
    api: Api, connection: ClusterConnection, make_namespace: Callable[..., str]
) -> None:
    changes: list[RunKey] = []
    install_crd(api)
    async with Connection(credentials.from_kubeconfig(connection.kubeconfig), Metrics()) as link:
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
