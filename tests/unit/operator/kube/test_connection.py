import asyncio
import json
import time
from contextlib import aclosing
from pathlib import Path

import pytest
from aiohttp import web

from echorl_operator.kube import credentials, errors
from echorl_operator.kube.connection import USER_AGENT, Call, Connection
from echorl_operator.metrics import Metrics
from echorl_testing.kube import faults
from echorl_testing.kube.fault_proxy import FaultProxy
from echorl_testing.kube.wire_api import WireApi
from echorl_testing.waiting import until

PODS = "/api/v1/namespaces/ns/pods"


async def test_a_request_says_who_asks_and_counts(connection: Connection, api: WireApi, metrics: Metrics) -> None:
    await api.set(PODS, "a", spec={"x": 1})
    reply = json.loads(await connection.request(Call("get", f"{PODS}/a", "pods")))
    assert reply["spec"] == {"x": 1}
    assert api.requests[-1][3]["User-Agent"] == USER_AGENT
    assert USER_AGENT.startswith("echorl-operator/")
    labels = {"verb": "get", "resource": "pods", "code": "200"}
    assert metrics.registry.get_sample_value("echorl_operator_api_requests_total", labels) == 1


@pytest.mark.parametrize("fault", [faults.drop(), faults.fail(503), faults.fail(500)])
async def test_a_server_that_fails_is_unavailable(
    connection: Connection, proxy: FaultProxy, fault: faults.Fault
) -> None:
    with proxy.fault(fault), pytest.raises(errors.Unavailable, match="create /api/v1/namespaces/ns/pods"):
        await connection.request(Call("create", PODS, "pods", body={"metadata": {"name": "a"}}))


async def test_a_server_that_hangs_is_unavailable_after_the_time_out(
    connection: Connection, proxy: FaultProxy, metrics: Metrics
) -> None:
    with proxy.fault(faults.hang()), pytest.raises(errors.Unavailable):
        await connection.request(Call("get", f"{PODS}/a", "pods", timeout_s=0.05))
    labels = {"verb": "get", "resource": "pods", "code": "timeout"}
    assert metrics.registry.get_sample_value("echorl_operator_api_requests_total", labels) == 1


async def test_a_cancellation_that_comes_as_the_time_is_up_is_one(connection: Connection, proxy: FaultProxy) -> None:
    """As when a busy machine lets a process wait until both are due: who was told to end would work on."""
    fault = faults.hang()
    with proxy.fault(fault):
        asking = asyncio.ensure_future(connection.request(Call("get", f"{PODS}/a", "pods", timeout_s=2.0)))
        due = time.monotonic() + 2.0
        await until(lambda: fault.hits == 1)
        asyncio.get_running_loop().call_soon(asking.cancel)
        while time.monotonic() < due:
            pass
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_nobody_listens(tmp_path: Path, metrics: Metrics) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    async with Connection(credentials.from_kubeconfig(path), metrics) as connection:
        with pytest.raises(errors.Unavailable):
            await connection.request(Call("get", f"{PODS}/a", "pods"))


async def test_a_line_longer_than_any_buffer_arrives_whole(connection: Connection, api: WireApi) -> None:
    await api.set(PODS, "a", spec={"x": "y" * 1_500_000})
    query = {"watch": "1", "resourceVersion": "0", "timeoutSeconds": "60"}
    async with aclosing(connection.watch(Call("watch", PODS, "pods", query, timeout_s=60))) as lines:
        line = await anext(lines)
    assert len(json.loads(line)["object"]["spec"]["x"]) == 1_500_000


async def test_silence_ends_a_watch(connection: Connection, proxy: FaultProxy) -> None:
    query = {"watch": "1", "resourceVersion": "0", "timeoutSeconds": "60"}
    with proxy.fault(faults.silence()), pytest.raises(errors.Unavailable):
        async with aclosing(connection.watch(Call("watch", PODS, "pods", query, timeout_s=0.1))) as lines:
            await anext(lines)


class _Guarded:
    """Accepts one bearer token."""

    def __init__(self, accepted: str) -> None:
        self.accepted, self.seen = accepted, []

    async def handle(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "").lower().removeprefix("bearer ")
        self.seen.append(token)
        return web.json_response({}, status=200 if token == self.accepted else 401)


async def test_a_rotated_token_is_read_again_when_it_is_refused(tmp_path: Path, metrics: Metrics) -> None:
    server, token = _Guarded("second"), tmp_path / "token"
    app = web.Application()
    app.router.add_get("/{path:.*}", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    token.write_text("first\n")
    config = tmp_path / "kubeconfig"
    user = {"tokenFile": str(token)}
    cluster = {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}
    config.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    now = [0.0]
    found = credentials.from_kubeconfig(config, clock=lambda: now[0])
    async with Connection(found, metrics) as connection:
        token.write_text("second\n")
        with pytest.raises(errors.Unauthorized):
            await connection.request(Call("get", "/version", ""))
        now[0] = 6.0
        await connection.request(Call("get", "/version", ""))
    assert server.seen == ["first", "first", "second"]
    await runner.cleanup()


async def test_the_pods_service_account_is_found(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    ca = tmp_path / "ca.crt"
    ca.write_text("nothing yet")
    environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    found = credentials.in_cluster(environ, tmp_path / "token", ca)
    with pytest.raises(credentials.NoCredentials):
        await found.load()


async def test_missing_configuration_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(credentials.NoCredentials, match="nowhere"):
        await credentials.from_kubeconfig(tmp_path / "nowhere").load()
    with pytest.raises(credentials.NoCredentials, match="Service host"):
        await credentials.in_cluster({}, tmp_path / "token", tmp_path / "ca").load()
