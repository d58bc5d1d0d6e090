"""Whatever is sent to a route of the orchestrator is answered by the caller's fault, never by ours.

The routes come from the router itself: one that is added without a row here fails.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from echorl_core import names
from echorl_core.config import SamplingConfig
from echorl_core.wire.reports import LogprobGap, StepReport
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.control.slow_connections import SlowConnections
from echorl_orchestrator.gateway.bodies import LARGEST_BODY, read_body
from echorl_orchestrator.gateway.http import GatewayApi
from echorl_orchestrator.gateway.sessions import Sessions
from echorl_orchestrator.gateway.turns import SessionSpec
from echorl_testing.orchestrator.scripted_policy import ScriptedPolicy, write_byte_tokenizer
from echorl_testing.orchestrator.sealed import identity
from echorl_testing.orchestrator.served_api import TOKEN, ServedApi

Client = TestClient[web.Request, web.Application]
HEADERS = {**identity().headers(), names.HEADER_TOKEN: TOKEN}
SAY: dict[str, Any] = {"messages": [{"role": "user", "content": "port?"}]}
GAP = LogprobGap(tokens=0, max_abs=None, mean_abs=None, over_tolerance=0)
REPORT = StepReport(attempt=1, step=0, metrics={}, gap=GAP, trained_tokens=1, packed_tokens=1, seconds={})
POLICY = {
    "wire_version": 2,
    "attempt": 1,
    "version": 0,
    "digest": "d",
    "url": "http://x",
    "size_bytes": 1,
    "seconds_gather": 0.0,
}


@dataclass(frozen=True)
class Row:
    """What a route takes."""

    body: Any = None
    """One that is accepted; None: it reads none."""
    query: Mapping[str, str] = field(default_factory=dict)


ROUTES: dict[tuple[str, str], Row] = {
    ("GET", "/trainer/batch"): Row(query={"step": "1", "rank": "0", "wait": "0"}),
    ("POST", "/trainer/policy"): Row(POLICY),
    ("POST", "/trainer/step"): Row(msgspec.to_builtins(REPORT)),
    ("POST", "/trainer/parts"): Row({"attempt": 1, "step": 0, "rank": 0, "parts": []}),
    ("POST", "/trainer/notice"): Row({"attempt": 1, "rank": 0, "within_s": 1.0, "save_s": 0.0}),
    ("POST", "/trainer/restart"): Row({"attempt": 1, "step": 0, "count": 1, "reason": "killed"}),
    ("POST", "/control/stop"): Row(),
    ("POST", "/control/live"): Row({"generation": 1}),
    ("GET", "/state"): Row(query={"since": "0", "wait": "0"}),
    ("GET", "/healthz"): Row(),
    ("GET", "/metrics"): Row(),
    **{
        (method, prefix + path): Row(body)
        for prefix in ("", "/s/{session}")
        for method, path, body in (
            ("POST", "/v1/chat/completions", SAY),
            ("POST", "/v1/messages", SAY),
            ("POST", "/v1/messages/count_tokens", SAY),
            ("GET", "/v1/models", None),
            ("POST", "/v1/responses", {"input": "port?"}),
        )
    },
}

DEEP = 100_000
HUGE = 10**400
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b'{"a": "\xff\xfe"}',
    "a list": b"[]",
    "null": b"null",
    "a number": b"1e999",
    "NaN": b'{"attempt": NaN, "temperature": NaN}',
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "lists without end": b"[" * DEEP,
    "a huge integer": json.dumps({"attempt": HUGE, "step": HUGE, "generation": HUGE}).encode(),
    "too many digits": b'{"attempt": ' + b"9" * 5000 + b"}",
    "half a surrogate pair": b'{"attempt": 1, "version": "\\ud800", "\\udfff": 1}',
    "a long name": json.dumps({"a" * 100_000: 1, "attempt": "b" * 100_000}).encode(),
    "NUL": b'{"attempt": "\\u0000"}\x00',
}
ODD_VALUES: list[Any] = [
    None,
    True,
    -1,
    0.5,
    HUGE,
    "x" * 5000,
    "\ud800",
    [],
    [[]],
    {},
    {"a": {"b": [1]}},
    ["x"],
    [1, None],
]
ODD_HEADERS: list[dict[str, str]] = [
    {},
    {names.HEADER_TOKEN: "t\u00f6ken"},
    {names.HEADER_TOKEN: "\udcff\udc00"},
    {names.HEADER_RUN: "\udcff"},
    {names.HEADER_RUN: "x" * 8000},
    {names.HEADER_ATTEMPT: "9" * 5000},
    {names.HEADER_WIRE: "\udcfe"},
    {names.HEADER_SESSION: "\udcff" * 100},
    {"Authorization": "Bearer \udcff"},
    {"Authorization": "Bearer"},
    {"Content-Type": "text/plain; charset=no-such-one"},
    {"Content-Encoding": "gzip"},
    {"Content-Encoding": "\udcff"},
    {"Expect": "miracles"},
    {"If-None-Match": "*", "Range": "bytes=9-1"},
    {"Range": "bytes=5-"},
]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ServedApi, Client]]:
    api, sessions = ServedApi(tmp_path), Sessions()
    bugs: list[BaseException] = []
    tokenizer = TextTokenizer(write_byte_tokenizer(tmp_path / "model"), name="bytes")
    policy = ScriptedPolicy(tokenizer, lambda text: "fern<|im_end|>")
    sessions.open(SessionSpec("k", "e", CompactCodec(tokenizer), policy, SamplingConfig(), max_model_len=4096))
    GatewayApi(sessions, bugs.append).routes(api.app)
    async with TestClient(TestServer(api.app), connector=aiohttp.TCPConnector(force_close=True)) as client:
        yield api, client
    assert bugs == []


async def status(client: Client, method: str, path: str, row: Row, **changes: Any) -> int:
    call: dict[str, Any] = {
        "data": None if row.body is None else json.dumps(row.body),
        "headers": {names.HEADER_SESSION: "k", **HEADERS},
        "params": row.query,
        **changes,
    }
    async with asyncio.timeout(60), client.request(method, path.format(session="k"), **call) as answer:
        await answer.read()
        return answer.status


def test_every_route_has_a_row(served: tuple[ServedApi, Client]) -> None:
    router = served[0].app.router
    found = {(one.method, one.resource.canonical) for one in router.routes() if one.resource and one.method != "HEAD"}
    assert found == set(ROUTES)


@pytest.mark.parametrize(("method", "path"), list(ROUTES), ids=str)
async def test_odd_requests_are_the_callers_fault(served: tuple[ServedApi, Client], method: str, path: str) -> None:
    row, (_, client) = ROUTES[method, path], served
    assert await status(client, method, path, row) < 300
    for name, body in BODIES.items():
        assert await status(client, method, path, row, data=body) < 500, name
    for headers in ODD_HEADERS:
        given = {**({} if not headers else HEADERS), names.HEADER_SESSION: "k", **headers}
        assert await status(client, method, path, row, headers=given) < 500, headers
    for other in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"):
        if other != method:
            assert 200 <= await status(client, other, path, row) < 500, other
    for name in row.query or ("x",):
        for value in ("", "x" * 5000, "9" * 5000, "-1", "nan", "1e999", "\x00", "\u0663", "[]"):
            assert await status(client, method, path, row, params={**row.query, name: value}) < 500, (name, value)
    # It works as before.
    assert await status(client, method, path, row) < 300


@pytest.mark.parametrize(("method", "path"), [key for key, row in ROUTES.items() if row.body], ids=str)
async def test_odd_fields_are_the_callers_fault(served: tuple[ServedApi, Client], method: str, path: str) -> None:
    row, (_, client) = ROUTES[method, path], served
    fields = set(row.body) | {"no such field"}
    if fields & {"messages", "input"}:
        fields |= {
            "tools",
            "stream",
            "stream_options",
            "temperature",
            "top_p",
            "top_k",
            "max_tokens",
            "tool_choice",
            "n",
            "system",
            "output_config",
            "instructions",
            "text",
            "truncation",
            "max_output_tokens",
        }
    for name in sorted(fields):
        for value in ODD_VALUES:
            changed = {**row.body, name: value, **({"stream": True} if name == "stream_options" else {})}
            assert await status(client, method, path, row, data=json.dumps(changed)) < 500, (name, value)


ITEM_FIELDS = ["role", "content", "type", "call_id", "name", "arguments", "output", "encrypted_content"]


@pytest.mark.parametrize("where", ITEM_FIELDS)
async def test_odd_items_and_tools_are_the_callers_fault(served: tuple[ServedApi, Client], where: str) -> None:
    _, client = served
    row = ROUTES["POST", "/v1/responses"]
    said = {"role": "user", "content": [{"type": "input_text", "text": "x"}]}
    items = [
        said,
        {"type": "function_call", "call_id": "c", "name": "ls", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
    ]
    for item in items:
        for value in [*ODD_VALUES, [{"type": "input_text", "text": 5}]]:
            body = {"input": [said, {**item, where: value}, said]}
            assert await status(client, "POST", "/v1/responses", row, data=json.dumps(body)) < 500, (item, value)
    for tool in [{}, {"name": 5}, {"type": "function", "name": "x", "parameters": 5}, {"type": "function"}, 5]:
        body = {"input": "x", "tools": [tool]}
        assert await status(client, "POST", "/v1/responses", row, data=json.dumps(body)) == 400, tool


@pytest.mark.parametrize("where", ["role", "content", "type", "text", "id", "name", "input", "tool_use_id", "thinking"])
async def test_odd_blocks_and_tools_are_the_callers_fault(served: tuple[ServedApi, Client], where: str) -> None:
    _, client = served
    row = ROUTES["POST", "/v1/messages"]
    blocks = [
        ("user", {"type": "text", "text": "x"}),
        ("assistant", {"type": "tool_use", "id": "c", "name": "ls", "input": {}}),
        ("assistant", {"type": "thinking", "thinking": "x"}),
        ("user", {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "x"}]}),
    ]
    for role, block in blocks:
        for value in ODD_VALUES:
            message = {"role": role, "content": [block], **({where: value} if where in ("role", "content") else {})}
            if where not in ("role", "content"):
                message["content"] = [{**block, where: value}]
            body = {"messages": [*SAY["messages"], message, *SAY["messages"]], "system": [block]}
            assert await status(client, "POST", "/v1/messages", row, data=json.dumps(body)) < 500, (block, value)
            del body["system"]
            assert await status(client, "POST", "/v1/messages", row, data=json.dumps(body)) < 500, (block, value)
    for tool in [{}, {"name": 5}, {"name": "x", "input_schema": 5}, {"name": "\ud800"}, {"type": []}, 5, {"name": []}]:
        body = {**SAY, "tools": [tool]}
        assert await status(client, "POST", "/v1/messages", row, data=json.dumps(body)) == 400, tool


@pytest.mark.parametrize("where", ["role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content"])
async def test_odd_messages_and_tools_are_the_callers_fault(served: tuple[ServedApi, Client], where: str) -> None:
    _, client = served
    row = ROUTES["POST", "/v1/chat/completions"]
    call = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    bases: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "x", "tool_call_id": "c"},
    ]
    for base in bases:
        for value in [*ODD_VALUES, [call, 5], [{"function": 5}], [{"function": {"name": "a", "arguments": HUGE}}]]:
            body = {"messages": [*SAY["messages"], {**base, where: value}, *SAY["messages"]]}
            assert await status(client, "POST", "/v1/chat/completions", row, data=json.dumps(body)) < 500, (base, value)
    for tool in [
        {},
        {"function": 5},
        {"function": {"name": 5}},
        {"function": {"name": "x", "parameters": 5}},
        {"name": []},
    ]:
        body = {**SAY, "tools": [tool]}
        assert await status(client, "POST", "/v1/chat/completions", row, data=json.dumps(body)) == 400, tool


@pytest.mark.parametrize(("method", "path"), [key for key, row in ROUTES.items() if row.body], ids=str)
async def test_a_body_that_is_too_large_or_breaks_off_is_the_callers_fault(
    served: tuple[ServedApi, Client], method: str, path: str
) -> None:
    _, client = served
    row = ROUTES[method, path]
    assert await status(client, method, path, row, data=BytesIO(b" " * (LARGEST_BODY + 1))) == 413
    head = "".join(f"{name}: {value}\r\n" for name, value in {names.HEADER_SESSION: "k", **HEADERS}.items())
    for rest in (
        "Content-Length: 100\r\n\r\n{",
        "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        "Transfer-Encoding: chunked\r\n\r\n9\r\n{",
    ):
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(f"{method} {path.format(session='k')} HTTP/1.1\r\nHost: x\r\n{head}{rest}".encode())
        writer.write_eof()
        async with asyncio.timeout(60):
            answered = await reader.read()
        assert not answered.split(b" ", 2)[1:2] or answered.split(b" ", 2)[1] < b"500", answered
        writer.close()
    assert await status(client, method, path, row) < 300


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=await read_body(request, within_s=0.05))

    app = web.Application()
    app.router.add_post("/", handle)
    async with TestClient(TestServer(app)) as client:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n12")
        async with asyncio.timeout(60):
            assert b" 408 " in await reader.readline()
        writer.close()


async def test_a_connection_that_begins_no_request_is_closed_and_others_stay() -> None:
    slow, app = SlowConnections(longest_s=0.0, look_s=0.01), web.Application()
    app.middlewares.append(slow.middleware())
    held, entered = asyncio.Event(), asyncio.Event()

    async def handle(_: web.Request) -> web.Response:
        entered.set()
        await held.wait()
        return web.Response(text="done")

    app.router.add_get("/", handle)
    async with TestClient(TestServer(app)) as client:
        asked = asyncio.create_task(client.get("/"))
        await entered.wait()
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(b"GET / HTTP/1.1\r\nHost")
        assert client.server.runner is not None
        server = client.server.runner.server
        assert isinstance(server, web.Server)
        looking = asyncio.create_task(slow.run(server))
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        held.set()
        assert await (await asked).text() == "done"
        assert await (await client.get("/")).text() == "done"
        looking.cancel()
        writer.close()
