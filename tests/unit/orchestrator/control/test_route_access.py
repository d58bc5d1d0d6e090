"""Who may call which route of the orchestrator. A route without a row here fails."""

from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from echorl_core import names
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_orchestrator.gateway.http import GatewayApi
from echorl_orchestrator.gateway.sessions import Sessions
from echorl_testing.orchestrator.sealed import identity
from echorl_testing.orchestrator.served_api import TOKEN, ServedApi

OPEN = {"/state", "/healthz", "/metrics", "/"}
"""Only read, by probes, Prometheus, people, and agents before their first call; no secret is in them."""
TOKEN_ROUTES = {
    *("/trainer/batch", "/trainer/policy", "/trainer/step", "/trainer/parts", "/trainer/notice", "/trainer/restart"),
    *("/control/stop", "/control/live"),
}
_DIALECTS = ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/models", "/v1/responses")
SESSION = {*_DIALECTS, *(f"/s/{{session}}{path}" for path in _DIALECTS)}
"""Need the key of an episode's session."""

WRONG = [None, "", "secret", f"{TOKEN}x", "\xe9t\xe9", "\udcff"]


@pytest.fixture
def api(tmp_path: Path) -> ServedApi:
    served = ServedApi(tmp_path)
    GatewayApi(Sessions(), lambda error: pytest.fail(repr(error))).routes(served.app)
    return served


def calls(api: ServedApi) -> list[tuple[str, str]]:
    return [(route.method, route.resource.canonical) for route in api.app.router.routes() if route.resource is not None]


def test_every_route_has_a_rule(api: ServedApi) -> None:
    assert {path for _, path in calls(api)} == OPEN | TOKEN_ROUTES | SESSION


async def test_without_its_key_no_route_does_anything(api: ServedApi) -> None:
    async with TestClient(TestServer(api.app)) as client:
        for method, path in calls(api):
            for token in WRONG:
                headers = {**identity().headers(), **({} if token is None else {names.HEADER_TOKEN: token})}
                answer = await client.request(method, path.format(session="no-such-session"), headers=headers)
                if path in OPEN:
                    assert answer.status == 200, path
                elif path in TOKEN_ROUTES:
                    assert (answer.status, method) == (403, method), (path, token)
                    assert TOKEN not in await answer.text()
                else:
                    assert answer.status in {401, 404}, path
    assert api.arrived == []
    assert api.desk.notice is None


async def test_a_version_that_nobody_can_have_trained_is_refused(api: ServedApi) -> None:
    headers = {**identity().headers(), names.HEADER_TOKEN: TOKEN}
    body = {"wire_version": 2, "attempt": 1, "version": 1002, "digest": "d", "url": "http://x", "size_bytes": 1}
    body["seconds_gather"] = 0
    async with TestClient(TestServer(api.app)) as client:
        answer = await client.post("/trainer/policy", json=body, headers=headers)
        assert (answer.status, await answer.json()) == (400, {"error": "version: found 1002, accepted is at most 0"})
        answer = await client.post("/trainer/policy", json={**body, "version": 0}, headers=headers)
        assert answer.status == 200
    assert [message.version for message in api.arrived if isinstance(message, PolicyAnnouncement)] == [0]
