from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from echorl_core.live import LiveSettings
from echorl_operator.kube import errors
from echorl_operator.kube.cache import Cache
from echorl_operator.kube.connection import Connection
from echorl_operator.kube.writer import NotLeading, Writer
from echorl_operator.metrics import Metrics
from echorl_operator.observed.runs import RunKey, RunRecord
from echorl_operator.orchestrators.polling import Orchestrators
from echorl_operator.orchestrators.tokens import Tokens
from echorl_operator.plan.actions import Action, Apply, AskToStop, ChangeLive, Create, Delete, DeleteRun, LiftGate
from echorl_operator.reconcile.execution import Executor, StillDiffers
from echorl_testing.kube.wire_api import WireApi

RUN = RunRecord(RunKey("ns", "r"), "uid", "1", 1, 0.0, None, {}, {}, {})
SERVICES = "/api/v1/namespaces/ns/services"
PODS = "/api/v1/namespaces/ns/pods"
RUNS = "/apis/echorl.dev/v1alpha1/namespaces/ns/echorlruns"
SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"x": 1}}


@pytest.fixture
def leads() -> list[bool]:
    """Whether the process leads: its last entry."""
    return [True]


@pytest.fixture
async def executor(connection: Connection, metrics: Metrics, leads: list[bool]) -> AsyncIterator[Executor]:
    cache = Cache(connection, ["ns"], on_change=lambda _: None, metrics=metrics)
    writer = Writer(connection, cache, may_write=lambda: leads[-1])
    async with Orchestrators(Tokens(b"k" * 32), on_change=lambda _: None, metrics=metrics) as orchestrators:
        yield Executor(writer, orchestrators)


def _sent(api: WireApi) -> tuple[str, str]:
    method, path, *_ = api.requests[-1]
    return method, path


async def test_each_action_is_one_call(executor: Executor, api: WireApi) -> None:
    pod = (await api.set(PODS, "p", apiVersion="v1", kind="Pod"))["metadata"]
    run = (await api.set(RUNS, "r"))["metadata"]
    expected: list[tuple[Action, tuple[str, str]]] = [
        (Apply(SERVICE), ("PATCH", f"{SERVICES}/a")),
        (Create({**SERVICE, "metadata": {"name": "b"}}), ("POST", SERVICES)),
        (LiftGate("p", pod["uid"], pod["resourceVersion"]), ("PATCH", f"{PODS}/p")),
        (Delete("v1", "Pod", "p", pod["uid"], "an old attempt's", 0), ("DELETE", f"{PODS}/p")),
        (DeleteRun(run["uid"]), ("DELETE", f"{RUNS}/r")),
    ]
    for action, call in expected:
        before = len(api.requests)
        await executor.carry_out(RUN, action)
        assert _sent(api) == call
        assert len(api.requests) == before + 1
    assert set(api.objects) == {(SERVICES, "a"), (SERVICES, "b")}


async def test_the_orchestrator_is_asked_to_stop(executor: Executor) -> None:
    asked: list[Any] = []

    async def stop(request: web.Request) -> web.Response:
        asked.append((request.headers["X-EchoRL-Run"], request.headers["X-EchoRL-Attempt"]))
        return web.json_response({})

    app = web.Application()
    app.router.add_post("/control/stop", stop)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    await executor.carry_out(RUN, AskToStop(f"127.0.0.1:{runner.addresses[0][1]}", 4))
    await runner.cleanup()
    assert asked == [("uid", "4")]


async def test_who_does_not_lead_tells_orchestrators_nothing(executor: Executor, leads: list[bool]) -> None:
    asked: list[str] = []

    async def take(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({})

    app = web.Application()
    app.router.add_post("/control/{what}", take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"127.0.0.1:{runner.addresses[0][1]}"
    settings = LiveSettings(generation=2, max_steps=10)
    actions: list[Action] = [AskToStop(address, 4), ChangeLive(address, 4, settings)]
    leads.append(False)
    for action in actions:
        with pytest.raises(NotLeading):
            await executor.carry_out(RUN, action)
    assert asked == []
    leads.append(True)
    for action in actions:
        await executor.carry_out(RUN, action)
    await runner.cleanup()
    assert asked == ["/control/stop", "/control/live"]


async def test_a_failure_ends_the_action(executor: Executor, api: WireApi) -> None:
    pod = (await api.set(PODS, "p", apiVersion="v1", kind="Pod"))["metadata"]
    with pytest.raises(errors.Conflict):
        await executor.carry_out(RUN, LiftGate("p", pod["uid"], "1"))


async def test_an_apply_without_lasting_effect_is_told(executor: Executor, api: WireApi) -> None:
    api.webhook = lambda body: {**body, "spec": {"x": 2}}
    with pytest.raises(StillDiffers, match="Service a does not keep what is applied"):
        await executor.carry_out(RUN, Apply(SERVICE))
