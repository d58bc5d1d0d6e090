"""Environments behind a real server of OpenEnv, and behind servers that are none or fall silent."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer

from echorl_core.config import EnvironmentConfig, SamplingConfig
from echorl_core.wire.batch import TokenRole
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.environments.loader import load_environment
from echorl_orchestrator.episodes.player import EpisodePlayer
from echorl_orchestrator.failures import BadInputError, ErrorKind, HarnessError, InfrastructureError
from echorl_orchestrator.types import Action, Environment, Span, Step
from echorl_testing.hubs import of_hub
from echorl_testing.hubs.served_openenv import served
from echorl_testing.orchestrator.scripted_policy import (
    IDENTITY,
    ScriptedPolicy,
    orchestrator_config,
    write_byte_tokenizer,
)
from echorl_testing.ports import free_port

pytestmark = [of_hub("openenv"), pytest.mark.timeout(1200)]  # the first time OpenEnv is installed


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with served() as address:
        yield address


def loaded(url: str, **args: Any) -> Environment:
    return load_environment("hub", f"openenv:{url}", {"num_tasks": 10, **args})


def act(*calls: dict[str, Any], name: str = "act") -> Action:
    return Action("", [{"id": f"c{place}", "name": name, "arguments": call} for place, call in enumerate(calls)])


async def begun(environment: Environment, task: int = 0) -> tuple[Any, Step]:
    episode = environment.text_env()
    return episode, await episode.reset(environment.tasks[task], seed=5, episode_id="e1")


@asynccontextmanager
async def playing(environment: Environment, task: int = 0) -> AsyncIterator[tuple[Any, Step]]:
    episode, first = await begun(environment, task)
    try:
        yield episode, first
    finally:
        await episode.close()


async def test_an_action_is_a_call_of_a_tool_with_its_fields(server: str) -> None:
    environment = await asyncio.to_thread(loaded, f"{server}/game", seed=3, system="Play.")
    assert [task["key"] for task in environment.tasks] == list(range(3, 13))
    async with playing(environment, 4) as (episode, first):  # seed 7: the number is 7
        assert [message["role"] for message in first.messages] == ["system", "user"]
        assert json.loads(first.messages[1]["content"]) == {"text": "a number from 0 to 9", "left": 3}
        function = first.tools[0]["function"]
        assert (function["name"], function["description"]) == ("act", "Guess the number.")
        assert (set(function["parameters"]["properties"]), function["parameters"]["required"]) == (
            {"number", "why"},
            ["number"],
        )
        step = await episode.step(act({"number": 3}))
        (message,) = step.messages
        assert (message["role"], message["tool_call_id"], message["name"]) == ("tool", "c0", "act")
        assert json.loads(message["content"]) == {"text": "more", "left": 2}
        assert (step.reward, step.terminated, step.warnings) == (0.25, False, [])
        # Of several calls those after the end do nothing.
        step = await episode.step(act({"number": 7}, {"number": 8}))
        assert [message["content"] for message in step.messages] == [
            '{"text": "right", "left": 1}',
            "Nothing was done: the episode is over.",
        ]
        assert (step.reward, step.terminated) == (1.5, True)
        assert step.info == {"state": {"episode_id": "e1", "step_count": 2}}


async def test_what_is_no_action_is_told_and_the_episode_goes_on(server: str) -> None:
    async with playing(await asyncio.to_thread(loaded, f"{server}/game")) as (episode, _):
        wrong = (act({"number": "x", "word": 1}), act({"number": 1}, name="guess"), Action("seven"))
        steps = [await episode.step(action) for action in wrong]
        told = [step.messages[0]["content"] for step in steps]
        # They are the harness's words, of which ECHO learns nothing.
        assert [step.warnings for step in steps] == [[Span(0, 0, len(text))] for text in told]
        assert told[0].startswith("The action was refused: number: Input should be a valid integer")
        assert told[0].endswith("word: Extra inputs are not permitted")
        assert told[1:] == ["There is no tool guess; call act.", "Nothing was done: call the tool act."]
        assert (await episode.step(act({"number": 0}))).reward == 1.25


async def test_words_are_a_field_of_the_action_and_one_of_the_observation_is_shown(server: str) -> None:
    args = {"action": "word", "observation": "text", "reward": "last", "reset": {"top": 4}}
    async with playing(await asyncio.to_thread(loaded, f"{server}/words", **args), 3) as (episode, first):
        assert (first.messages, first.tools) == ([{"role": "user", "content": "a number from 0 to 4"}], [])
        assert (await episode.step(Action("1"))).messages == [{"role": "user", "content": "more"}]
        last = await episode.step(Action("3"))
    assert (last.reward, last.terminated) == (1.25, True)


async def test_tasks_may_be_those_of_a_split_that_the_server_has(server: str) -> None:
    environment = await asyncio.to_thread(loaded, f"{server}/split", split="train", seed=40)
    assert [task["key"] for task in environment.tasks] == [0, 1]
    async with playing(environment, 1) as (episode, first):
        assert json.loads(first.messages[0]["content"])["text"] == "train 1, told by 41"
        assert (await episode.step(act({"number": 6}))).reward == 1.25
    test = await asyncio.to_thread(loaded, f"{server}/split", split="test", reset={"split": "train"})
    async with playing(test) as (_, first):
        assert json.loads(first.messages[0]["content"])["text"] == "test 0, told by 0"
    assert len((await asyncio.to_thread(loaded, f"{server}/split", split="train", num_tasks=1)).tasks) == 1


async def test_an_environment_without_rewards_says_so_unless_that_is_worth_something(server: str) -> None:
    async with playing(await asyncio.to_thread(loaded, f"{server}/silent")) as (episode, _):
        with pytest.raises(HarnessError, match=r"without a reward: let args\.unrewarded say"):
            await episode.step(act({"number": 0}))
    async with playing(await asyncio.to_thread(loaded, f"{server}/silent", unrewarded=-1)) as (episode, _):
        assert (await episode.step(act({"number": 0}))).reward == -1.0


async def test_what_the_servers_environment_fails_at_is_the_harness_failure(server: str) -> None:
    async with playing(await asyncio.to_thread(loaded, f"{server}/broken")) as (episode, _):
        with pytest.raises(HarnessError, match="step: EXECUTION_ERROR: the board fell down"):
            await episode.step(act({"number": 0}))
    with pytest.raises(HarnessError, match="reset: EXECUTION_ERROR"):
        await begun(await asyncio.to_thread(loaded, f"{server}/game", reset={"top": "ten"}))
    with pytest.raises(HarnessError, match=r"args\.observation: found 'board', accepted are text, left"):
        await begun(await asyncio.to_thread(loaded, f"{server}/game", observation="board"))


async def test_an_episode_waits_for_room_on_the_server(server: str) -> None:
    environment = await asyncio.to_thread(loaded, f"{server}/single", room_timeout_s=60)
    first, _ = await begun(environment)
    with pytest.raises(InfrastructureError, match=r"had no room for a session for 0 s .* maxConcurrent"):
        await begun(await asyncio.to_thread(loaded, f"{server}/single", room_timeout_s=0))
    waiting = asyncio.create_task(begun(environment))
    assert not (await asyncio.wait([waiting], timeout=1.0))[0]
    await first.close()
    second, step = await waiting
    assert step.messages
    await second.close()


@pytest.mark.parametrize(
    ("path", "args", "problem"),
    [
        ("/nothing", {}, r"found no server of OpenEnv at http://.*/nothing \(/schema: status 404\)"),
        ("/game", {"action": "word"}, r"args\.action: found 'word', accepted are number, why"),
        ("/game", {"num_tasks": 0}, r"environments\.hub\.args: num_tasks: Input should be greater than or equal to 1"),
        ("/split", {"split": "dev"}, r"openenv: args\.split: found 'dev', accepted are train, test, empty"),
        ("/split", {"split": "empty"}, r"num_tasks of 'empty': found {'num_tasks': 0}, accepted are tasks"),
        ("/game", {"split": "train"}, r"args\.split: .*/splits says 501: the server has no tasks of its own; leave"),
        ("/game", {"image": "x"}, r"environments\.hub\.args: image: Extra inputs are not permitted"),
    ],
)
def test_what_cannot_be_used_refuses_the_run(server: str, path: str, args: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInputError, match=problem):
        loaded(f"{server}{path}", **args)


@pytest.mark.parametrize("url", ["echo", "ftp://host", "http://", "http://host:1/a?b", "http://user:word@host"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadInputError, match="accepted is the address of a server, http://HOST:PORT"):
        loaded(url)


def test_a_server_that_is_down_is_waited_for_and_then_named() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(BadInputError, match=rf"found no server at {address} \(.*onnect.*\), accepted is"):
        loaded(address, start_timeout_s=1.0)


@asynccontextmanager
async def odd_server(*answers: str) -> AsyncIterator[str]:
    """The address of a server that answers a session's frames with these texts, and then ends it."""

    async def schema(_: web.Request) -> web.Response:
        return web.json_response({"action": {"properties": {"word": {"type": "string"}}}})

    async def session(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for answer in answers:
            assert (await socket.receive()).type is WSMsgType.TEXT
            if answer:
                await socket.send_str(answer)
        await socket.receive()
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get("/schema", schema)
    app.router.add_get("/ws", session)
    async with TestServer(app) as made:
        yield str(made.make_url("")).rstrip("/")


RESET = '{"type": "observation", "data": {"observation": {}, "reward": null, "done": false}}'


@pytest.mark.parametrize(
    ("answers", "failure", "problem"),
    [
        ([RESET], InfrastructureError, "step: the server ended the session"),
        ([RESET, "{"], HarnessError, r"step: found '\{', accepted is a frame"),
        ([RESET, "[" * 100_000], HarnessError, "step: found '.*accepted is a frame"),
        ([RESET, '{"type": "state", "data": {}}'], HarnessError, "accepted is a frame of type observation or error"),
        ([RESET, RESET.replace("{}", "7")], HarnessError, "step: observation: found int, accepted is an object"),
        ([RESET, RESET.replace("null", '"much"')], HarnessError, "step: reward: found 'much', accepted is a number"),
        ([RESET, '{"type": "error", "data": {"code": "SESSION_ERROR"}}'], InfrastructureError, "SESSION_ERROR"),
    ],
    ids=["lost", "no JSON", "deep", "another type", "no observation", "no number", "session"],
)
async def test_a_server_that_fails_is_classed(answers: list[str], failure: type[Exception], problem: str) -> None:
    async with odd_server(*answers) as address, playing(await asyncio.to_thread(loaded, address)) as (episode, _):
        with pytest.raises(failure, match=problem):
            await episode.step(act({"word": "x"}))


async def test_a_server_that_is_gone_when_an_episode_begins_is_infrastructure() -> None:
    async with odd_server(RESET) as address:
        environment = await asyncio.to_thread(loaded, address)
    with pytest.raises(InfrastructureError, match=r"/ws: .*onnect"):
        await begun(environment)


async def test_a_server_that_does_not_answer_in_time_is_infrastructure() -> None:
    async with odd_server(RESET, "") as address:
        environment = await asyncio.to_thread(loaded, address, call_timeout_s=3.0)
        async with playing(environment) as (episode, _):
            with pytest.raises(InfrastructureError, match=r"step: no answer after 3 s"):
                await episode.step(act({"word": "x"}))


async def test_a_run_plays_it_and_every_sampled_token_trains(server: str, tmp_path: Path) -> None:
    def guess(text: str) -> str:
        return f"{text.count('more') + 6}<|im_end|>"

    model = write_byte_tokenizer(tmp_path / "model")
    tokenizer, port = TextTokenizer(model, name="bytes"), free_port()
    words, broken = (
        EnvironmentConfig(
            name=name,
            type=f"openenv:{server}/{name}",
            args={"action": field, "observation": "text", "num_tasks": 10},
            max_retries=1,
            sampling=SamplingConfig(max_completion_tokens=16),
            state_columns=["state"],
        )
        for name, field in (("words", "word"), ("broken", "number"))
    )
    policy = ScriptedPolicy(tokenizer, guess)
    player = EpisodePlayer(
        orchestrator_config(model, [words, broken], port=port), IDENTITY, policy, CompactCodec(tokenizer)
    )
    app = web.Application()
    player.routes(app)
    try:
        async with TestServer(app, port=port):
            await player.start()
            task = await player.task(words, 7)
            played = await player.play(words, task, episode="e1", group="g", seed=7, attempt=1)
            returned = [token for _, generation in policy.returned for token in generation.token_ids]
            failed = await player.play(broken, task, episode="e2", group="g", seed=7, attempt=1)
    finally:
        await player.close()
    assert (played.reward, played.error, played.num_turns) == (1.5, None, 2)
    assert played.info == {"state": {"episode_id": "e1", "step_count": 2}}
    (sample,) = played.samples
    assert sample.token_ids[sample.role == TokenRole.ACTION].tolist() == returned
    assert (failed.reward, failed.error_kind) == (None, ErrorKind.HARNESS)
    assert failed.error == "step: EXECUTION_ERROR: the board fell down"
