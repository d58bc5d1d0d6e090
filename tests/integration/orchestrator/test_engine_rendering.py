"""Episodes with ``renderer: engine``: real workers, gateway and pool; the engine at the wire renders the chats."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import numpy as np
import pytest

from echorl_core.config import EngineDiscovery, EnvironmentConfig, OrchestratorConfig, SamplingConfig
from echorl_core.identity import RunIdentity
from echorl_core.wire.batch import TokenRole
from echorl_orchestrator.codec.engine_rendering import EngineRendering
from echorl_orchestrator.engines import EnginePool
from echorl_orchestrator.engines.dispatch import FRUITLESS
from echorl_orchestrator.episode_outcome import EpisodeOutcome, StopReason
from echorl_orchestrator.episodes.player import EpisodePlayer, build_player
from echorl_orchestrator.failures import ErrorKind
from echorl_testing.engines.fake_engine import RUN_UID, TOKEN, FakeEngine, logprob, policy
from echorl_testing.orchestrator.fake_chat import ROLES, rendered, said
from echorl_testing.orchestrator.scripted_policy import orchestrator_config
from echorl_testing.orchestrator.served_gateway import ServedGateway, served_gateway

TERMINAL = EnvironmentConfig(
    name="terminal", type="builtin:terminal", max_turns=4, sampling=SamplingConfig(max_completion_tokens=200)
)
IDENTITY = RunIdentity("run", RUN_UID, 1)


def call(name: str, **arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"content": None, "tool_calls": [{"id": f"engines-{name}", "type": "function", "function": function}]}


def solve(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The environment's intended way through: grep the key, look at the file, submit the word."""
    seen = [message["content"] for message in messages if message["role"] == "tool"]
    if not seen:
        return call("grep", pattern=messages[0]["content"].removesuffix("?"))
    if len(seen) == 1:
        return call("cat", path=seen[0])
    word = re.search(r"=(\w+)", seen[1])
    assert word is not None
    return call("submit", word=word[1])


def config_of(engine: FakeEngine) -> OrchestratorConfig:
    config = orchestrator_config(
        Path("the-engine-has-it"), [TERMINAL], renderer="engine", max_model_len=engine.max_model_len
    )
    return config.model_copy(update={"engines": EngineDiscovery(names=[engine.address], interval_s=0.05)})


@asynccontextmanager
async def pool_of(engine: FakeEngine) -> AsyncIterator[EnginePool]:
    pool = EnginePool(config_of(engine), IDENTITY, TOKEN, on_update=lambda _: None)
    await pool.start()
    try:
        pool.announce(policy(1))
        await pool.wait_served(1, 60)
        yield pool
    finally:
        await pool.close()


@asynccontextmanager
async def playing(engine: FakeEngine, max_model_len: int) -> AsyncIterator[EpisodePlayer]:
    engine.max_model_len = max_model_len
    async with pool_of(engine) as pool:
        player = build_player(config_of(engine), IDENTITY, pool)
        try:
            await player.start()
            yield player
        finally:
            await player.close()


async def play(player: EpisodePlayer) -> EpisodeOutcome:
    task = await player.task(TERMINAL, 0)
    played = player.play(TERMINAL, task, episode="e1", group="g", seed=7, attempt=1)
    return await asyncio.wait_for(played, 120)


async def test_an_episode_is_one_branch_of_the_engines_own_ids() -> None:
    async with FakeEngine() as engine, playing(engine, 4096) as player:
        engine.reply = solve
        outcome = await play(player)
    assert (outcome.reward, outcome.stop, outcome.error) == (1.0, StopReason.TERMINATED, None)
    assert (outcome.num_turns, outcome.dropped_branches) == (3, 0)
    asked = [body["messages"] for body in engine.bodies("render")]
    assert [len(messages) for messages in asked] == [1, 3, 5]
    assert asked[2][1]["tool_calls"][0]["function"] == solve(asked[0])["tool_calls"][0]["function"]
    assert asked[2][2]["tool_call_id"] == asked[2][1]["tool_calls"][0]["id"]
    (sample,) = outcome.samples
    whole = rendered(asked[2]) + said(solve(asked[2]))
    assert sample.token_ids.tolist() == whole
    actions = np.zeros(len(whole), bool)
    for messages in asked:
        start = len(rendered(messages))
        assert whole[start - 1] == ROLES["assistant"]
        actions[start : start + len(said(solve(messages)))] = True
    np.testing.assert_array_equal(sample.role == TokenRole.ACTION, actions)
    np.testing.assert_array_equal(sample.rl_weight, actions.astype(np.float32))
    np.testing.assert_allclose(
        sample.logprobs[actions], [logprob(1, int(place)) for place in np.flatnonzero(actions)], rtol=1e-5
    )
    assert not sample.ce_weight.any()


@pytest.mark.parametrize(
    ("max_model_len", "turns", "stop", "kind"),
    [(5, 0, StopReason.ERROR, ErrorKind.OVERLONG), (70, 1, StopReason.PROMPT_TOO_LONG, None)],
)
async def test_a_prompt_that_the_engine_finds_too_long_ends_the_episode(
    max_model_len: int, turns: int, stop: StopReason, kind: ErrorKind | None
) -> None:
    async with FakeEngine() as engine, playing(engine, max_model_len) as player:
        engine.reply = solve
        outcome = await play(player)
    assert (outcome.num_turns, outcome.stop, outcome.error_kind) == (turns, stop, kind)
    assert len(engine.bodies("render")) == turns + 1


@asynccontextmanager
async def counting(engine: FakeEngine, folder: Path) -> AsyncIterator[tuple[ServedGateway, anthropic.AsyncAnthropic]]:
    """A gateway with a session ``e`` whose prompts the engine renders, and a client of that."""
    async with pool_of(engine) as pool, served_gateway(folder) as gateway:
        gateway.open("e", codec=EngineRendering(), generator=pool)
        async with anthropic.AsyncAnthropic(base_url=gateway.url("/s/e"), api_key="none", max_retries=0) as client:
            yield gateway, client


async def test_counted_tokens_are_those_of_the_turn_that_the_engine_renders(tmp_path: Path) -> None:
    talk: Any = [{"role": "user", "content": "port?"}]
    async with FakeEngine() as engine, counting(engine, tmp_path) as (_, client):
        counted = await client.messages.count_tokens(model="policy", system="brief", messages=talk)
        assert not engine.bodies("render")
        turn = await client.messages.create(model="policy", system="brief", messages=talk, max_tokens=99)
        assert counted.input_tokens == turn.usage.input_tokens == len(rendered(engine.bodies("render")[0]["messages"]))


async def test_an_engine_that_does_not_count_is_an_error_of_the_api_and_the_sessions_failure(tmp_path: Path) -> None:
    async with FakeEngine() as engine, counting(engine, tmp_path) as (gateway, client):
        engine.fail("tokenize", 500, times=FRUITLESS)
        with pytest.raises(anthropic.APIStatusError, match="HTTP 500: scripted 500") as caught:
            await client.messages.count_tokens(model="policy", messages=[{"role": "user", "content": "port?"}])
        body: Any = caught.value.body
        assert (caught.value.status_code, body["error"]["type"]) == (503, "overloaded_error")
        failure = gateway.sessions.get("e").facts.failure
        assert failure is not None
        assert failure.kind is ErrorKind.PROVIDER


@pytest.mark.parametrize("end", ["session", "client"])
async def test_a_count_ends_with_its_session_or_its_client(tmp_path: Path, end: str) -> None:
    async with FakeEngine() as engine, counting(engine, tmp_path) as (gateway, client):
        engine.hold("tokenize")
        call = asyncio.create_task(
            client.messages.count_tokens(model="policy", messages=[{"role": "user", "content": "port?"}])
        )
        await engine.until(lambda: bool(engine.bodies("tokenize")))
        if end == "session":
            await gateway.sessions.close("e")
            with pytest.raises(anthropic.APIStatusError, match="session e was closed"):
                await call
        else:
            call.cancel()
        await engine.until(lambda: engine.cancelled == ["tokenize"])
        assert gateway.bugs == []
