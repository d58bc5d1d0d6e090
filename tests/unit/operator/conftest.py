import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pytest

from echorl_operator.kube import credentials
from echorl_operator.kube.connection import Connection
from echorl_operator.metrics import Metrics
from echorl_testing.kube.fault_proxy import FaultProxy, Upstream
from echorl_testing.kube.wire_api import WireApi


@pytest.fixture
async def api() -> AsyncIterator[WireApi]:
    async with WireApi() as server:
        yield server


@pytest.fixture
async def proxy(api: WireApi) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(Upstream(api.url)) as server:
        yield server


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def connection(proxy: FaultProxy, metrics: Metrics, tmp_path: Path) -> AsyncIterator[Connection]:
    found = credentials.from_kubeconfig(proxy.write_kubeconfig(tmp_path / "kubeconfig"))
    async with Connection(found, metrics) as opened:
        yield opened


class Start(Protocol):
    def __call__(self, work: Coroutine[Any, Any, Any], *, ends: bool = False) -> "asyncio.Task[Any]": ...


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Run something beside the test; its failure fails the test unless that awaits the end itself."""
    tasks: list[asyncio.Task[Any]] = []

    def begin(work: Coroutine[Any, Any, Any], *, ends: bool = False) -> "asyncio.Task[Any]":
        task = asyncio.ensure_future(work)
        if not ends:
            tasks.append(task)
        return task

    yield begin
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
