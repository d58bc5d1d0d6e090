"""Lease and events on a real API server."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from echorl_operator.kube.connection import Connection
from echorl_operator.kube.election import Election, ElectionSettings
from echorl_operator.kube.events import EventLimits, Events
from echorl_operator.kube.resources import EVENT, LEASE
from echorl_operator.metrics import Metrics
from echorl_operator.observed import decode
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.credentials import Connection as ClusterConnection
from echorl_testing.kube import faults
from echorl_testing.kube.fault_proxy import FaultProxy
from echorl_testing.kube.run_objects import Runs, install_crd
from echorl_testing.operator.operator_io import Io, opened
from echorl_testing.operator.rendered import manifest
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


async def test_events_appear_and_become_series(io: Io, link: Connection, api: Api, namespace: str) -> None:
    document = manifest("quickstart")
    created = Runs(api, namespace).created(document)
    run = decode.run(json.dumps(created).encode())
    now = [0.0]
    events = Events(link, "operator-0", io.metrics, limits=EventLimits(series_s=10), clock=lambda: now[0])
    for _ in range(4):
        await events.post(run, "Warning", "GangLost", "trainer-1 was evicted: " + "x" * 2000)
    now[0] = 11
    await events.post(run, "Warning", "GangLost", "trainer-1 was evicted: " + "x" * 2000)
    await Events(link, "operator-1", Metrics()).post(run, "Normal", "Started", "all pods are ready")
    found = {one["reason"]: one for one in api.get(EVENT.path(namespace))["items"]}
    assert found["GangLost"]["series"]["count"] == 5
    assert found["GangLost"]["regarding"]["uid"] == run.uid
    assert "series" not in found["Started"]
    assert io.metrics.registry.get_sample_value("echorl_operator_events_total", {"result": "failed"}) is None


QUICK = ElectionSettings(lease_s=8.0, renew_deadline_s=6.0, retry_s=0.5, request_s=0.4)
"""Quicker than its own, and yet no machine that stops for a moment loses the lease."""
PATIENCE_S = 60.0


async def test_election_by_a_real_lease(link: Connection, api: Api, namespace: str, proxy: FaultProxy) -> None:
    lost: list[str] = []

    def candidate(name: str) -> Election:
        return Election(link, namespace, "operator", name, on_lost=lost.append, metrics=Metrics(), settings=QUICK)

    def spec() -> dict[str, Any]:
        return api.get(LEASE.path(namespace, "operator"))["spec"]

    one, two, three = (candidate(name) for name in ("one", "two", "three"))
    first = asyncio.ensure_future(one.run())
    await asyncio.wait_for(one.wait_elected(), PATIENCE_S)
    assert (spec()["holderIdentity"], spec()["leaseTransitions"]) == ("one", 0)
    second = asyncio.ensure_future(two.run())
    await until(lambda: two.holder == "one")
    # Between two rounds: a renewal that is on its way would come before the release, which fails then.
    ended_at = one.last_round
    await until(lambda: one.last_round > ended_at)
    first.cancel()
    await one.release()
    # The next candidate may have seen it already.
    assert spec().get("holderIdentity") in (None, "two")
    await asyncio.wait_for(two.wait_elected(), PATIENCE_S)
    assert (spec()["holderIdentity"], spec()["leaseTransitions"]) == ("two", 1)
    third = asyncio.ensure_future(three.run())
    await until(lambda: three.holder == "two")
    second.cancel()
    await asyncio.wait_for(three.wait_elected(), PATIENCE_S)
    assert spec()["holderIdentity"] == "three"
    with proxy.fault(faults.fail(500, faults.leases)):
        await until(lambda: bool(lost))
        assert not three.leading
    with pytest.raises(Exception, match="not renewed"):
        await third
