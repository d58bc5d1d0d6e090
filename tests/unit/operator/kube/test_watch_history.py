"""The history that tests of the cluster judge by: when a watch may begin anew, and when it may not."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from echorl_operator.kube.resources import RUN
from echorl_testing.cluster.credentials import ADMIN, Connection
from echorl_testing.kube import faults
from echorl_testing.kube.async_api import AsyncApi
from echorl_testing.kube.fault_proxy import FaultProxy
from echorl_testing.kube.faults import Request
from echorl_testing.kube.watch_history import History
from echorl_testing.waiting import until

WATCH_OF_RUNS = faults.of(verb="watch", resource=RUN.plural)


@pytest.fixture
async def admin(proxy: FaultProxy, tmp_path: Path) -> AsyncIterator[AsyncApi]:
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=none"]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=60)
    connection = Connection(proxy.url, certificate, tmp_path / "kubeconfig", {ADMIN: "token"})
    async with AsyncApi(connection) as found:
        yield found


def followed(proxy: FaultProxy) -> list[Request]:
    return [one for one in proxy.running_watches if WATCH_OF_RUNS(one)]


async def test_before_anybody_asks_a_watch_may_begin_anew(proxy: FaultProxy, admin: AsyncApi) -> None:
    with proxy.fault(faults.stream_error(410, WATCH_OF_RUNS, times=2)) as hole:
        async with History(admin) as history:
            await until(lambda: hole.hits == 2 and bool(followed(proxy)))
            history.check()
    lists = [one for one in proxy.records if (one.request.verb, one.request.resource) == ("list", RUN.plural)]
    assert len(lists) == 3


async def test_a_hole_in_what_somebody_looks_at_fails(proxy: FaultProxy, admin: AsyncApi) -> None:
    async def look() -> None:
        async with History(admin) as history:
            await history.until("research", "runs are watched", lambda: followed(proxy), 60)
            proxy.end_watches(410, WATCH_OF_RUNS)
            await history.until("research", "what never is", lambda: False, 60)

    with pytest.raises(AssertionError, match="the history of echorlruns has a hole"):
        await look()


async def test_a_hole_that_the_test_expects_is_none(proxy: FaultProxy, admin: AsyncApi) -> None:
    async with History(admin) as history:
        await history.until("research", "runs are watched", lambda: followed(proxy), 60)
        (before,) = followed(proxy)
        history.expect_hole(RUN)
        proxy.end_watches(410, WATCH_OF_RUNS)
        await history.until(
            "research", "another watch", lambda: [one.number for one in followed(proxy)] > [before.number], 60
        )
