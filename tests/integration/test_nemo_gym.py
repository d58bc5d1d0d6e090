"""Environments behind real resources servers of NeMo Gym, and behind servers that are none or fail."""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from echorl_core.config import EnvironmentConfig, SamplingConfig
from echorl_core.wire.batch import TokenRole
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.environments.loader import load_environment
from echorl_orchestrator.environments.nemo_gym.mcp import McpServer
from echorl_orchestrator.environments.nemo_gym.server import GymSession
from echorl_orchestrator.episode_outcome import EpisodeOutcome, StopReason
from echorl_orchestrator.episodes.player import EpisodePlayer
from echorl_orchestrator.failures import BadInputError, EpisodeError, ErrorKind, HarnessError, InfrastructureError
from echorl_testing.hubs import of_hub
from echorl_testing.hubs.served_nemo_gym import served
from echorl_testing.orchestrator.scripted_policy import (
    IDENTITY,
    ScriptedPolicy,
    orchestrator_config,
    write_byte_tokenizer,
)
from echorl_testing.ports import free_port

pytestmark = [of_hub("nemo-gym"), pytest.mark.timeout(1200)]  # the first time NeMo Gym is installed

COUNT = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
NOTHING = {"type": "object", "properties": {}}
TOOLS = [
    {"type": "function", "name": name, "parameters": parameters, "strict": True}
    for name, parameters in (("increment_counter", COUNT), ("get_counter_value", NOTHING))
]


def counting(text: str, start: int, expected: int) -> dict[str, Any]:
    params = {"input": [{"role": "user", "content": text}], "tools": TOOLS, "temperature": 0.2}
    return {"responses_create_params": params, "initial_count": start, "expected_count": expected}


ROWS = {
    "counter": [counting("add 3", 2, 5), counting("add x", 2, 5), counting("add 3" + " x" * 600, 2, 5)],
    "mcqa": [
        {"responses_create_params": {"input": text}, "options": [{"A": "1"}, {"B": "2"}], "expected_answer": "B"}
        for text in ("A, or B?", "A, or B, at length?")
    ],
    "weather": [
        {"responses_create_params": {"input": text, "tools": []}, "verifier_metadata": {"expected_city": "Paris"}}
        for text in ("weather in Paris", "weather in nowhere", "weather in court")
    ],
    "broken": [counting("add 3", 2, 5)],
    "limited": [counting("add 3", 2, 5), counting("add 3", 2, 9)],
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with served() as address:
        yield address


def said(prompt: str) -> str:
    """Add what was asked for, read the counter, and say that it is done; letters go into a box."""
    if city := re.search(r"weather in (\w+)", prompt):
        read = re.search(r"<tool_response>(.*)</tool_response>", prompt, re.DOTALL)
        called = {"Paris": "get_weather Paris", "nowhere": "get_weather", "court": "verify"}[city[1]]
        return f"{read[1] if read else f'<tool_call>{called}</tool_call>'}<|im_end|>"
    asked = re.search(r"add (\w+)", prompt)
    if asked is None:
        return "well, " * 20 * ("at length" in prompt) + "\\boxed{B}<|im_end|>"
    steps = [f"<tool_call>increment_counter {asked[1]}</tool_call>", "<tool_call>get_counter_value</tool_call>", "done"]
    return f"{steps[prompt.count('<tool_response>')]}<|im_end|>"


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


class Table:
    """Plays tasks of a run's environments."""

    def __init__(self, folder: Path, address: str) -> None:
        model, self._port = write_byte_tokenizer(folder / "model"), free_port()
        self._environments = {
            name: EnvironmentConfig(
                name=name,
                type=f"nemo-gym:{address}/{'counter' if name == 'limited' else name}",
                args={"data": str(write(folder / f"{name}.jsonl", rows))},
                max_turns=2 if name == "limited" else None,
                max_retries=0,
                sampling=SamplingConfig(max_completion_tokens=64),
            )
            for name, rows in ROWS.items()
        }
        tokenizer = TextTokenizer(model, name="bytes")
        self.policy = ScriptedPolicy(tokenizer, said)
        config = orchestrator_config(model, list(self._environments.values()), port=self._port, max_model_len=700)
        self._player = EpisodePlayer(config, IDENTITY, self.policy, CompactCodec(tokenizer))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        app = web.Application()
        self._player.routes(app)
        try:
            async with TestServer(app, port=self._port):
                await self._player.start()
                yield
        finally:
            await self._player.close()

    async def play(self, name: str, index: int = 0) -> tuple[EpisodeOutcome, list[int]]:
        """The outcome, and all tokens that engines returned for it."""
        before, config = len(self.policy.returned), self._environments[name]
        task = await self._player.task(config, index)
        outcome = await self._player.play(config, task, episode=f"{name}-{index}", group="g", seed=7, attempt=1)
        returned = self.policy.returned[before:]
        return outcome, [token for _, generation in returned for token in generation.token_ids]


async def test_a_run_plays_real_servers_and_every_sampled_token_trains(server: str, tmp_path: Path) -> None:
    table = Table(tmp_path, server)
    async with table.open():
        counted, returned = await table.play("counter")
        wrong, _ = await table.play("counter", 1)
        long, _ = await table.play("counter", 2)
        boxed, _ = await table.play("mcqa")
        cut, _ = await table.play("mcqa", 1)
        weather, weather_tokens = await table.play("weather")
        nowhere, _ = await table.play("weather", 1)
        court, _ = await table.play("weather", 2)
        broken, _ = await table.play("broken")
        limited, _ = await table.play("limited")
        missed, _ = await table.play("limited", 1)
        table.policy.errors = [EpisodeError(ErrorKind.PROVIDER, "the engine is gone")]
        lost, _ = await table.play("mcqa")
    # The server's session lasts through the episode: 2 + 3 is 5.
    assert (counted.error, counted.reward, counted.num_turns, counted.stop) == (None, 1.0, 3, StopReason.TERMINATED)
    assert [message["content"] for message in counted.messages if message["role"] == "tool"] == [
        '{"success":true}',
        '{"count":5}',
    ]
    (sample,) = counted.samples
    assert sample.token_ids[sample.role == TokenRole.ACTION].tolist() == returned
    # What a tool refuses is told, and the episode goes on to its verdict.
    assert (wrong.error, wrong.reward, wrong.num_turns) == (None, 0.0, 3)
    assert "int_parsing" in wrong.messages[2]["content"]
    assert (boxed.reward, boxed.num_turns) == (1.0, 1)
    assert (cut.error, cut.reward, cut.num_turns, cut.stop) == (None, 0.0, 1, StopReason.TRUNCATED)
    assert (limited.reward, limited.num_turns, limited.stop, missed.reward) == (1.0, 2, StopReason.MAX_TURNS, 0.0)
    assert (long.error_kind, long.samples) == (ErrorKind.OVERLONG, [])
    assert (lost.error_kind, lost.error) == (ErrorKind.PROVIDER, "the engine is gone")
    # Tools behind MCP are of the same session as the verdict.
    assert (weather.error, weather.reward, weather.num_turns, weather.metrics["tool_call_seen"]) == (None, 1.0, 2, 1.0)
    assert weather.messages[2]["content"] == "The weather in Paris is sunny and 72 F."
    (sample,) = weather.samples
    assert sample.token_ids[sample.role == TokenRole.ACTION].tolist() == weather_tokens
    assert (nowhere.error, nowhere.reward, nowhere.num_turns) == (None, 0.0, 2)
    assert "validation error" in nowhere.messages[2]["content"]
    # Its verdict is no tool of a server.
    assert (court.reward, court.messages[2]["content"]) == (0.0, '{"error": "there is no tool verify"}')
    assert broken.error_kind is ErrorKind.HARNESS
    assert "/broken/verify: status 500" in str(broken.error)


def loaded(url: str, **args: Any) -> Any:
    return load_environment("gym", f"nemo-gym:{url}", args)


@pytest.mark.parametrize("url", ["gym", "ftp://host", "http://", "http://host:1/a?b"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadInputError, match="accepted is the address of a server, http://HOST:PORT"):
        loaded(url, data="rows.jsonl")


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (["{"], r"rows\.jsonl:1: Expecting property name"),
        ([ROWS["mcqa"][0], "3"], r"rows\.jsonl:2: found no responses_create_params\.input"),
        ([{"responses_create_params": {"input": 3}}], "accepted are text and a list of items"),
        ([{"responses_create_params": {"input": "x", "tools": ["y"]}}], r"tools: found \['y'\], accepted is a list"),
    ],
)
def test_rows_that_are_none_are_refused_by_their_line(tmp_path: Path, rows: list[Any], problem: str) -> None:
    with pytest.raises(BadInputError, match=problem):
        loaded("http://127.0.0.1:1", data=str(write(tmp_path / "rows.jsonl", rows)))


def test_a_server_that_is_down_is_waited_for_and_then_named(tmp_path: Path) -> None:
    address, data = f"http://127.0.0.1:{free_port()}", str(write(tmp_path / "rows.jsonl", ROWS["mcqa"]))
    with pytest.raises(BadInputError, match=rf"found no server at {address} \(.*onnect.*\), accepted is one that runs"):
        loaded(address, data=data, start_timeout_s=0.5)
    with pytest.raises(BadInputError, match=r"args\.data: found 'absent.jsonl', accepted is a file"):
        loaded(address, data="absent.jsonl")


def test_a_server_of_something_else_is_refused(server: str, tmp_path: Path) -> None:
    data = str(write(tmp_path / "rows.jsonl", ROWS["mcqa"]))
    with pytest.raises(BadInputError, match=rf"found no /seed_session and /verify at {server}, accepted is a resour"):
        loaded(server, data=data)
    assert len(loaded(f"{server}/mcqa/", data=data, num_tasks=1).tasks) == 1


Answer = Callable[[web.Request], Any]


@asynccontextmanager
async def odd_session(answer: Answer) -> AsyncIterator[GymSession]:
    """A session on a server that answers every request with what ``answer`` returns."""
    app = web.Application()
    app.router.add_post("/{path}", answer)
    async with TestServer(app) as made, GymSession(str(made.make_url("")).rstrip("/"), 30.0) as session:
        yield session


async def hanging_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


def saying(text: str, status: int = 200) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    return answer


@pytest.mark.parametrize(
    ("answer", "failure", "problem"),
    [
        (hanging_up, InfrastructureError, "/verify: "),
        (saying("[" * 100_000), HarnessError, r"/verify: status 200, found '\[+', accepted is a JSON object"),
        (saying('{"reward": 1}', 422), HarnessError, "/verify: status 422"),
        (saying('{"reward": "much"}'), HarnessError, "reward: found much, accepted is a number"),
        (saying('{"score": 1}'), HarnessError, "reward: found None, accepted is a number"),
    ],
    ids=["lost", "deep", "refused", "no number", "no reward"],
)
async def test_a_server_that_fails_is_classed(answer: Answer, failure: type[Exception], problem: str) -> None:
    async with odd_session(answer) as session:
        with pytest.raises(failure, match=problem):
            await session.verify({}, {})


async def test_numbers_beside_the_reward_are_metrics_and_those_of_the_row_are_not() -> None:
    async with odd_session(
        saying('{"reward": 0.5, "accuracy": true, "overlap": 0.25, "id": 3, "said": "x"}')
    ) as session:
        assert await session.verify({"id": 3}, {}) == (0.5, {"accuracy": 1.0, "overlap": 0.25})


async def test_a_server_of_mcp_may_keep_sessions_and_answer_by_streams(server: str) -> None:
    async with GymSession(f"{server}/streamed", 30.0) as gym:
        add, *others = await gym.seed({})
        assert (add["name"], add["description"], add["parameters"]["required"]) == (
            "add",
            "Add two numbers.",
            ["a", "b"],
        )
        assert [tool["name"] for tool in others] == ["draw", "fail"]
        assert await gym.tool("add", {"a": 2, "b": 3}) == "5"
        assert await gym.tool("draw", {}) == "[image: not shown]"
        assert "the scale broke" in await gym.tool("fail", {})
        assert "validation error" in await gym.tool("add", {"a": "x"})
        assert (await gym.tool("add", [2, 3])).startswith("error: ")
    async with aiohttp.ClientSession() as client:
        mcp = McpServer(client, f"{server}/streamed/mcp", {})
        await mcp.tools()
        await mcp.close()
        with pytest.raises(InfrastructureError, match="status 404: the server has forgotten the session"):
            await mcp.call("add", {"a": 2, "b": 3})


@asynccontextmanager
async def odd_mcp(*results: Any, where: Any = None) -> AsyncIterator[GymSession]:
    """A session on a server whose MCP answers with these results, one after the other, and then hangs up."""
    left = list(results)

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/seed_session":
            return web.json_response({"mcp": {"url_path": "/mcp", "headers": {}} if where is None else where})
        body = await request.json()
        if "id" not in body:
            return web.Response(status=202)
        if not left:
            return await hanging_up(request)
        result = left.pop(0)
        if isinstance(result, web.Response):
            return result
        return web.json_response({"jsonrpc": "2.0", "id": body["id"], **result})

    async with odd_session(answer) as gym:
        yield gym


BEGUN = {"result": {"protocolVersion": "2025-06-18"}}
TOOL = {"name": "look", "inputSchema": {"type": "object"}}


@pytest.mark.parametrize(
    ("results", "failure", "problem"),
    [
        ([], InfrastructureError, "/mcp: initialize: "),
        ([web.Response(text="<html>")], HarnessError, "initialize: found '<html>', accepted is an answer of JSON-RPC"),
        ([web.Response(status=500, text="oh")], HarnessError, "initialize: status 500, found 'oh'"),
        ([{"error": {"code": -32600, "message": "no"}}], HarnessError, "initialize: no"),
        (
            [{"result": {"protocolVersion": "2024-11-05"}}],
            HarnessError,
            "found '2024-11-05', accepted are 2025",
        ),
        ([BEGUN, {"result": {}}], HarnessError, "tools/list: tools: found None, accepted is a list"),
        ([BEGUN, {"result": []}], HarnessError, r"tools/list: result: found \[\], accepted is an object"),
        (
            [BEGUN, {"result": {"tools": [{"name": "x"}]}}],
            HarnessError,
            "accepted is objects with name and ",
        ),
        ([BEGUN, *[{"result": {"tools": [], "nextCursor": "1"}}] * 100], HarnessError, "more than 100 pages"),
    ],
)
async def test_a_server_of_mcp_that_fails_is_classed(
    results: list[Any], failure: type[Exception], problem: str
) -> None:
    async with odd_mcp(*results) as gym:
        with pytest.raises(failure, match=problem):
            await gym.seed({})


@pytest.mark.parametrize(
    "where",
    [
        "/mcp",
        {"url_path": "http://other/mcp", "headers": {}},
        {"url_path": "/mcp", "headers": {"a": 1}},
        {"url_path": "/mcp", "headers": {}, "transport": "stdio"},
    ],
)
async def test_a_place_of_mcp_that_is_none_is_the_harness_failure(where: Any) -> None:
    async with odd_mcp(where=where) as gym:
        with pytest.raises(HarnessError, match=r"mcp: found .*, accepted are url_path, headers and transport: http"):
            await gym.seed({})


async def test_pages_of_tools_are_one_list_and_what_a_tool_answers_wrongly_is_the_harness_failure() -> None:
    pages = [{"result": {"tools": [TOOL], "nextCursor": "2"}}, {"result": {"tools": [{**TOOL, "name": "go"}]}}]
    answers = [{"result": {"content": [], "structuredContent": {"x": 1}}}, {"result": {"content": "x"}}]
    async with odd_mcp(BEGUN, *pages, *answers) as gym:
        assert [tool["name"] for tool in await gym.seed({})] == ["look", "go"]
        assert await gym.tool("go", {}) == '{"x": 1}'
        with pytest.raises(HarnessError, match="tools/call: content: found x, accepted is a list of blocks"):
            await gym.tool("go", {})
        with pytest.raises(InfrastructureError, match="tools/call: "):
            await gym.tool("look", {})
