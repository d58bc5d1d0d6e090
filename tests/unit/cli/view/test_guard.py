"""Who may see the pages."""

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from echorl_cli.view.guard import Guard


async def page(_):
    return PlainTextResponse("runs")


async def talk(socket: WebSocket):
    await socket.accept()
    await socket.send_text("hello")
    await socket.close()


APP = Starlette(routes=[Route("/", page), WebSocketRoute("/ws", talk)])


def client(token="", host="localhost:8765"):
    return TestClient(Guard(APP, token), base_url=f"http://{host}", follow_redirects=False)


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1:8765", "[::1]:8765"])
def test_whoever_is_on_this_machine_sees_the_page(host):
    found = client(host=host).get("/")
    assert (found.status_code, found.text) == (200, "runs")
    assert "default-src 'self'" in found.headers["content-security-policy"]
    assert "http" not in found.headers["content-security-policy"]


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1:8765"])
def test_a_name_that_was_made_to_lead_here_is_refused(host):
    assert client().get("/", headers={"host": host}).status_code == 403


def test_another_sites_page_is_refused():
    assert client().get("/", headers={"origin": "http://evil.example"}).status_code == 403
    assert client().get("/", headers={"origin": "http://localhost:8765"}).status_code == 200
    with pytest.raises(WebSocketDisconnect), client().websocket_connect("/ws", headers={"origin": "http://evil"}):
        pass


def test_with_a_token_nobody_enters_without():
    there = client("secret", "10.0.0.1:8765")
    assert there.get("/").status_code == 401
    assert there.get("/?token=guess").status_code == 401
    assert there.get("/", headers={"cookie": "echorl_view_10_0_0_1_8765=guess"}).status_code == 401
    with pytest.raises(WebSocketDisconnect), there.websocket_connect("/ws"):
        pass


def test_the_token_of_the_address_becomes_a_cookie():
    there = client("secret", "10.0.0.1:8765")
    entered = there.get("/?run=1&token=secret")
    assert (entered.status_code, entered.headers["location"]) == (303, "/?run=1")
    assert "HttpOnly" in entered.headers["set-cookie"]
    assert "SameSite=strict" in entered.headers["set-cookie"]
    assert there.get("/?run=1").text == "runs"
    with there.websocket_connect("ws://10.0.0.1:8765/ws") as socket:
        assert socket.receive_text() == "hello"


def test_an_address_never_leads_elsewhere():
    there = client("secret", "10.0.0.1:8765")
    found = there.get("http://10.0.0.1:8765//evil.example/?token=secret")
    assert found.headers["location"] == "/evil.example/"
