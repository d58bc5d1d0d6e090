"""What the API server refuses is told by an event: once, though the write is tried again and again."""

from pathlib import Path
from typing import Any

from echorl_operator.kube import credentials
from echorl_operator.metrics import Metrics
from echorl_operator.orchestrators.tokens import Tokens
from echorl_operator.process import Options, running
from echorl_operator.settings import Settings
from echorl_testing.kube import faults
from echorl_testing.kube.fault_proxy import FaultProxy, Upstream
from echorl_testing.kube.wire_api import WireApi
from echorl_testing.operator.observed_worlds import run
from echorl_testing.waiting import until

RUNS = "/apis/echorl.dev/v1alpha1/namespaces/ns/echorlruns"
EVENTS = "/apis/events.k8s.io/v1/namespaces/ns/events"
QUOTA = (
    'services "one-trainer" is forbidden: exceeded quota: few, requested: services=1, used: services=3, '
    "limited: services=3"
)
SERVICES = faults.of(verb="apply", resource="services")


async def test_a_quota_is_told_once(tmp_path: Path) -> None:
    async with WireApi() as api, FaultProxy(Upstream(api.url)) as proxy:
        found = credentials.from_kubeconfig(proxy.write_kubeconfig(tmp_path / "kubeconfig"))
        await found.load()
        options = Options("one", "ns", namespaces=["ns"], lead=False)
        with proxy.fault(faults.fail(403, SERVICES, message=QUOTA)) as refusal:
            async with running(options, Settings(operator_version="1"), Tokens(b"k" * 32), found, Metrics()):
                await api.set(RUNS, "one", spec=run().spec)
                await until(lambda: bool(blocked(api)), 60)
                hits = refusal.hits
                await until(lambda: refusal.hits >= hits + 3, 60)
        (event,) = blocked(api)
        assert (event["type"], event["regarding"]["name"]) == ("Warning", "one")
        assert event["note"].startswith("QuotaExceeded: Service one-trainer cannot be created: exceeded quota: few")


async def test_a_refusal_is_told_although_its_first_status_write_meets_a_conflict(tmp_path: Path) -> None:
    async with WireApi() as api, FaultProxy(Upstream(api.url)) as proxy:
        found = credentials.from_kubeconfig(proxy.write_kubeconfig(tmp_path / "kubeconfig"))
        await found.load()
        options = Options("one", "ns", namespaces=["ns"], lead=False)
        conflict = faults.fail(409, _tells_quota, reason="Conflict", times=1)
        with proxy.fault(faults.fail(403, SERVICES, message=QUOTA)), proxy.fault(conflict) as missed:
            async with running(options, Settings(operator_version="1"), Tokens(b"k" * 32), found, Metrics()):
                await api.set(RUNS, "one", spec=run().spec)
                await until(lambda: missed.hits == 1, 60)
                await until(lambda: bool(blocked(api)), 60)
        conditions = api.objects[RUNS, "one"]["status"]["conditions"]
        assert [one["reason"] for one in conditions if one["type"] == "Blocked"] == ["QuotaExceeded"]


def _tells_quota(request: faults.Request) -> bool:
    return request.resource == "echorlruns" and request.subresource == "status" and b"QuotaExceeded" in request.body


def blocked(api: WireApi) -> list[dict[str, Any]]:
    return [one for (where, _), one in api.objects.items() if where == EVENTS and one["reason"] == "Blocked"]
