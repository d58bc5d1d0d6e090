"""A pass that trips over a bug of the operator's own is told at the run, and harms no other run."""

from pathlib import Path
from typing import Any

from echorl_operator.kube import credentials
from echorl_operator.metrics import Metrics
from echorl_operator.orchestrators.tokens import Tokens
from echorl_operator.process import Options, running
from echorl_operator.settings import Settings
from echorl_testing.kube.fault_proxy import FaultProxy, Upstream
from echorl_testing.kube.wire_api import WireApi
from echorl_testing.operator.observed_worlds import run
from echorl_testing.waiting import until

RUNS = "/apis/echorl.dev/v1alpha1/namespaces/ns/echorlruns"
EVENTS = "/apis/events.k8s.io/v1/namespaces/ns/events"
UNREADABLE = {"conditions": 5}
"""What no CRD lets pass; the plan trips over it."""


async def test_a_pass_that_raises_is_told_by_an_event(tmp_path: Path) -> None:
    async with WireApi() as api, FaultProxy(Upstream(api.url)) as proxy:
        found = credentials.from_kubeconfig(proxy.write_kubeconfig(tmp_path / "kubeconfig"))
        await found.load()
        options = Options("one", "ns", namespaces=["ns"], lead=False)
        async with running(options, Settings(operator_version="1"), Tokens(b"k" * 32), found, Metrics()):
            await api.set(RUNS, "one", spec=run().spec, status=UNREADABLE)
            await api.set(RUNS, "two", spec=run().spec)
            await until(lambda: bool(told(api)), 60)
            await until(lambda: api.objects[RUNS, "two"].get("status", {}).get("phase") == "Preparing", 60)
        assert {(one["type"], one["regarding"]["name"]) for one in told(api)} == {("Warning", "one")}
        assert told(api)[0]["note"].startswith("the operator cannot decide: TypeError: ")


def told(api: WireApi) -> list[dict[str, Any]]:
    return [one for (where, _), one in api.objects.items() if where == EVENTS and one["reason"] == "PassFailed"]
