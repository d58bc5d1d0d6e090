"""The liveness probe, as kopf's own server answers it: what makes a kubelet start the process again, and what does not.

Both ends are real, kopf's frame and the operator's streams; only the API server is a small one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import kopf
import pytest

from echorl_operator.handlers import registry
from echorl_operator.kube import credentials
from echorl_operator.kube.lists import StreamSettings
from echorl_operator.metrics import Metrics
from echorl_operator.orchestrators.tokens import Tokens
from echorl_operator.process import Operator, Options, running
from echorl_operator.settings import Settings
from echorl_operator.watchdog import WatchdogLimits
from echorl_testing import campaign
from echorl_testing.kube import faults
from echorl_testing.kube.fault_proxy import FaultProxy, Upstream
from echorl_testing.kube.wire_api import WireApi
from echorl_testing.ports import free_ports
from echorl_testing.scrape import asked

LIMITS = WatchdogLimits(silence_s=5.0)
"""Far above the time between two bookmarks, on a slow machine too."""
REMEMBERED_S = 10.0
"""So long kopf answers as it did before, once it has found the process alive."""
FAST = StreamSettings(watch_s=1.0, silence_s=0.4, first_wait_s=0.01, longest_wait_s=0.1)
PATIENCE_S = 120.0
SERVICES = faults.of(resource="services")


class Process:
    """What ``python -m echorl_operator`` puts together, in this process."""

    def __init__(self, operator: Operator, task: "asyncio.Task[object]", proxy: FaultProxy, port: int) -> None:
        self.operator, self.task, self.proxy, self._port = operator, task, proxy, port

    async def alive(self) -> int:
        """Status that a kubelet gets; 0: nobody answers."""
        return (await asyncio.to_thread(asked, self._port, "/healthz"))[0]

    async def until_alive_is(self, status: int) -> None:
        """Ask until the answer is this."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.alive() != status:  # noqa: ASYNC110 - what is waited for is an answer
                await asyncio.sleep(0.1)


@asynccontextmanager
async def process(folder: Path) -> AsyncIterator[Process]:
    options = Options("one", "ns", namespaces=["ns"], lead=False, streams=FAST, limits=LIMITS)
    (port,), stop = free_ports(1), asyncio.Event()
    async with WireApi() as api, FaultProxy(Upstream(api.url)) as proxy:
        describe(api)
        found = credentials.from_kubeconfig(proxy.write_kubeconfig(folder / "kubeconfig"))
        await found.load()
        settings = Settings(operator_version="1")
        async with running(options, settings, Tokens(b"k" * 32), found, Metrics()) as (operator, task):
            frame = asyncio.create_task(
                kopf.operator(
                    registry=registry(operator, task, found),  # type: ignore[arg-type]
                    standalone=True,
                    namespaces=["ns"],
                    liveness_endpoint=f"http://127.0.0.1:{port}/healthz",
                    stop_flag=stop,
                )
            )
            made = Process(operator, task, proxy, port)
            try:
                await made.until_alive_is(200)
                yield made
            finally:
                stop.set()
                await asyncio.wait({frame}, timeout=PATIENCE_S)


def describe(api: WireApi) -> None:
    """What kopf asks a server at its start."""
    run = {"name": "echorlruns", "singularName": "echorlrun", "kind": "EchoRLRun", "namespaced": True, "verbs": VERBS}
    group = {"name": "echorl.dev", "versions": [{"version": "v1alpha1", "groupVersion": "echorl.dev/v1alpha1"}]}
    api.objects["", "apis"] = {"groups": [group | {"preferredVersion": group["versions"][0]}]}  # type: ignore[index]
    api.objects["", "api"] = {"versions": ["v1"]}
    api.objects["/api", "v1"] = {"resources": []}
    api.objects["/apis/echorl.dev", "v1alpha1"] = {"resources": [run]}


VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


WAYS = [pytest.param(faults.fail(403, SERVICES), id="refused"), pytest.param(faults.hang(SERVICES), id="unanswered")]


@pytest.mark.parametrize("how", campaign.campaign_params("silent watches", WAYS, 1))
async def test_a_watch_that_stays_silent_fails_the_probe_until_it_is_heard_of_again(
    how: faults.Fault, tmp_path: Path
) -> None:
    async with process(tmp_path) as one:
        with one.proxy.fault(how):
            one.proxy.end_watches(when=SERVICES)
            await one.until_alive_is(500)
            assert "nothing heard of services in ns" in str(one.operator.watchdog.not_alive())
            assert not one.operator.breaker.open
        await one.until_alive_is(200)


async def test_an_api_server_that_is_away_is_no_reason_to_be_started_again(tmp_path: Path) -> None:
    async with process(tmp_path) as one:
        with one.proxy.fault(faults.drop()):
            one.proxy.end_watches()
            async with asyncio.timeout(PATIENCE_S):
                while min(stream.age() for stream in one.operator.cache.streams) < LIMITS.silence_s + REMEMBERED_S:
                    assert await one.alive() == 200
                    await asyncio.sleep(0.1)


async def test_a_part_that_has_ended_fails_the_probe(tmp_path: Path) -> None:
    async with process(tmp_path) as one:
        one.task.cancel()
        await one.until_alive_is(500)
