import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from echorl_operator.kube import credentials
from echorl_operator.kube.connection import Connection
from echorl_operator.kube.election import Election, ElectionSettings, LostLeadership
from echorl_operator.metrics import Metrics
from echorl_testing.kube import faults
from echorl_testing.kube.fault_proxy import FaultProxy
from echorl_testing.kube.wire_api import WireApi
from echorl_testing.waiting import until

LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
FAST = ElectionSettings(lease_s=6.0, renew_deadline_s=3.5, retry_s=0.3, request_s=0.25)


class Candidate:
    def __init__(self, connection: Connection, name: str, clock: Callable[[], float] | None = None) -> None:
        self.lost: list[str] = []
        self.metrics = Metrics()
        options = {} if clock is None else {"clock": clock}
        self.election = Election(
            connection, "ns", "operator", name, on_lost=self.lost.append, metrics=self.metrics, settings=FAST, **options
        )

    def led(self) -> float | None:
        return self.metrics.registry.get_sample_value("echorl_operator_leader_transitions_total")


@pytest.fixture
def candidate(connection: Connection) -> Callable[[str], Candidate]:
    return lambda name: Candidate(connection, name)


def _holder(api: WireApi) -> str | None:
    lease = api.objects.get((LEASES, "operator"))
    return None if lease is None else lease["spec"].get("holderIdentity")


async def test_one_of_two_leads_and_renews(candidate: Callable[[str], Candidate], api: WireApi, start) -> None:
    one, two = candidate("one"), candidate("two")
    start(one.election.run())
    await one.election.wait_elected()
    start(two.election.run())
    renewed = api.objects[LEASES, "operator"]["metadata"]["resourceVersion"]
    await until(lambda: int(api.objects[LEASES, "operator"]["metadata"]["resourceVersion"]) >= int(renewed) + 20)
    assert one.election.leading
    assert not two.election.leading
    assert _holder(api) == "one"
    assert api.objects[LEASES, "operator"]["spec"]["leaseTransitions"] == 0
    assert (one.led(), two.led()) == (1, 0)


async def test_a_crashed_leader_is_followed_after_its_lease(
    candidate: Callable[[str], Candidate], api: WireApi, start
) -> None:
    one, two = candidate("one"), candidate("two")
    crash = start(one.election.run())
    await one.election.wait_elected()
    start(two.election.run())
    await until(lambda: two.election.holder == "one")
    crash.cancel()
    stopped_at = asyncio.get_running_loop().time()
    await two.election.wait_elected()
    took_s = asyncio.get_running_loop().time() - stopped_at
    assert FAST.lease_s / 2 < took_s < 60
    assert _holder(api) == "two"
    assert api.objects[LEASES, "operator"]["spec"]["leaseTransitions"] == 1


async def test_a_released_lease_is_taken_at_once(candidate: Callable[[str], Candidate], api: WireApi, start) -> None:
    one, two = candidate("one"), candidate("two")
    running = start(one.election.run())
    await one.election.wait_elected()
    start(two.election.run())
    await until(lambda: two.election.holder == "one")
    running.cancel()
    await one.election.release()
    assert not one.election.leading
    assert _holder(api) is None
    async with asyncio.timeout(FAST.lease_s * 2 / 3):
        await two.election.wait_elected()


async def test_a_container_that_restarts_leads_again_at_once(
    candidate: Callable[[str], Candidate], api: WireApi, start
) -> None:
    lease = {"holderIdentity": "pod-uid", "leaseDurationSeconds": 15, "leaseTransitions": 4}
    await api.set(LEASES, "operator", spec=lease)
    again = candidate("pod-uid")
    start(again.election.run())
    async with asyncio.timeout(10):
        await again.election.wait_elected()
    assert api.objects[LEASES, "operator"]["spec"]["leaseTransitions"] == 4


@pytest.mark.parametrize("fault", [faults.hang(faults.leases), faults.fail(500, faults.leases), faults.drop()])
async def test_a_leader_that_cannot_renew_stops_before_its_lease_ends(
    candidate: Callable[[str], Candidate], proxy: FaultProxy, start, fault: faults.Fault
) -> None:
    one = candidate("one")
    running = start(one.election.run(), ends=True)
    await one.election.wait_elected()
    cut_at = asyncio.get_running_loop().time()
    with proxy.fault(fault):
        await until(lambda: bool(one.lost))
        took_s = asyncio.get_running_loop().time() - cut_at
    assert took_s < FAST.lease_s
    assert not one.election.leading
    with pytest.raises(LostLeadership):
        await running
    assert one.metrics.registry.get_sample_value("echorl_operator_leader") == 0


async def test_a_short_fault_does_not_cost_leadership(
    candidate: Callable[[str], Candidate], proxy: FaultProxy, api: WireApi, start
) -> None:
    one = candidate("one")
    start(one.election.run())
    await one.election.wait_elected()
    for fault in (faults.drop(faults.writes_of("leases"), after=True), faults.conflict(faults.leases)):
        fault.times = 2
        proxy.add(fault)
        await until(lambda fault=fault: fault.hits == 2)
        version = int(api.objects[LEASES, "operator"]["metadata"]["resourceVersion"])
        await until(
            lambda version=version: int(api.objects[LEASES, "operator"]["metadata"]["resourceVersion"]) > version + 2
        )
    assert one.election.leading
    assert not one.lost


async def test_a_process_that_hung_knows_that_it_leads_no_more(connection: Connection, api: WireApi, start) -> None:
    skew = [0.0]
    one = Candidate(connection, "one", clock=lambda: asyncio.get_running_loop().time() + skew[0])
    running = start(one.election.run(), ends=True)
    await one.election.wait_elected()
    assert one.election.leading
    skew[0] = 30.0
    assert not one.election.leading, "before anything else ran"
    await until(lambda: bool(one.lost))
    with pytest.raises(LostLeadership, match="not renewed for"):
        await running


async def test_a_lease_that_somebody_else_took_is_given_up_at_once(
    candidate: Callable[[str], Candidate], api: WireApi, start
) -> None:
    one = candidate("one")
    running = start(one.election.run(), ends=True)
    await one.election.wait_elected()
    await api.set(LEASES, "operator", spec={"holderIdentity": "thief", "leaseDurationSeconds": 15})
    with pytest.raises(LostLeadership, match="held by 'thief'"):
        await running
    assert one.lost == ["the lease is held by 'thief'"]


async def test_a_deleted_lease_is_made_again(candidate: Callable[[str], Candidate], api: WireApi, start) -> None:
    one = candidate("one")
    start(one.election.run())
    await one.election.wait_elected()
    await api.remove(LEASES, "operator")
    await until(lambda: _holder(api) == "one")
    assert one.election.leading


async def test_wall_clocks_decide_nothing(candidate: Callable[[str], Candidate], api: WireApi, start) -> None:
    lease = {"holderIdentity": "other", "leaseDurationSeconds": 15, "renewTime": "2001-01-01T00:00:00.000000Z"}
    await api.set(LEASES, "operator", spec=lease)
    one = candidate("one")
    start(one.election.run())
    await until(lambda: sum(method == "GET" for method, *_ in api.requests) >= 4)
    assert not one.election.leading


def test_times_must_leave_room() -> None:
    with pytest.raises(ValueError, match="renew_deadline_s < lease_s"):
        ElectionSettings(lease_s=10, renew_deadline_s=10)


async def test_two_that_start_at_once_never_both_lead(proxy: FaultProxy, tmp_path: Path, start) -> None:
    path = proxy.write_kubeconfig(tmp_path / "kubeconfig")
    async with (
        Connection(credentials.from_kubeconfig(path), Metrics()) as first,
        Connection(credentials.from_kubeconfig(path), Metrics()) as second,
    ):
        candidates = [Candidate(first, "one"), Candidate(second, "two")]
        for one in candidates:
            start(one.election.run())
        await until(lambda: any(one.election.leading for one in candidates))
        rounds = [one.election.last_round for one in candidates]
        await until(lambda: all(one.election.last_round > at + 0.5 for one, at in zip(candidates, rounds, strict=True)))
        assert sum(one.election.leading for one in candidates) == 1
