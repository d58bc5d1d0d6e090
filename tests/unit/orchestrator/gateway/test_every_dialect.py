"""What holds for a client of any dialect: who hangs up, who waits, and what is done with the answers of both."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from echorl_orchestrator.episodes.branch_verdicts import Unused, unused_turns
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.gateway.dialect import Dialect
from echorl_orchestrator.gateway.http import found_dialects
from echorl_testing.orchestrator.served_gateway import ServedGateway, served_gateway
from echorl_testing.waiting import until

DIALECTS = {dialect.path: dialect for dialect in found_dialects()}
SAY = {"messages": [{"role": "user", "content": "port?"}], "input": "port?"}


def body_of(dialect: Dialect, **fields: Any) -> dict[str, Any]:
    conversation = "input" if dialect.path == "/v1/responses" else "messages"
    return {conversation: SAY[conversation], **fields}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[ServedGateway]:
    async with served_gateway(tmp_path) as served:
        yield served


@pytest.fixture(params=list(DIALECTS))
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return DIALECTS[request.param]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.parametrize("stream", [False, True])
async def test_hanging_up_aborts_the_generation(
    gateway: ServedGateway, http: aiohttp.ClientSession, dialect: Dialect, stream: bool
) -> None:
    gateway.policy.gate.clear()
    url = gateway.url(f"/s/k{dialect.path}")
    call = asyncio.create_task(http.post(url, json=body_of(dialect, stream=stream)).__aenter__())
    await asyncio.wait_for(gateway.policy.arrived.wait(), 60)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: bool(gateway.session.facts.aborted))
    assert gateway.policy.cancelled == 1
    assert gateway.session.history.branches == []
    assert gateway.bugs == []


async def test_a_stream_speaks_while_the_turn_is_computed_and_hears_who_leaves(
    gateway: ServedGateway, http: aiohttp.ClientSession, dialect: Dialect
) -> None:
    gateway.policy.gate.clear()
    url, body = gateway.url(f"/s/k{dialect.path}"), body_of(dialect, stream=True)
    async with asyncio.timeout(60), http.post(url, json=body) as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        assert (await answer.content.readuntil(b"\n\n")).decode() == dialect.heartbeat
        answer.close()
    await until(lambda: bool(gateway.policy.cancelled))
    gateway.policy.gate.set()
    async with asyncio.timeout(60), http.post(url, json=body) as answer:
        assert answer.status == 200
        assert dialect.heartbeat not in await answer.text()


async def test_what_fails_after_the_first_word_is_told_in_the_stream(
    gateway: ServedGateway, http: aiohttp.ClientSession, dialect: Dialect
) -> None:
    gateway.policy.gate.clear()
    url = gateway.url(f"/s/k{dialect.path}")
    async with asyncio.timeout(60), http.post(url, json=body_of(dialect, stream=True)) as answer:
        gateway.policy.errors.append(EpisodeError(ErrorKind.PROVIDER, "engine lost"))
        gateway.policy.gate.set()
        said = await answer.text()
    assert said.startswith(dialect.heartbeat)
    assert "engine lost" in said
    assert gateway.bugs == []


async def test_closing_a_session_ends_its_streams(
    gateway: ServedGateway, http: aiohttp.ClientSession, dialect: Dialect
) -> None:
    gateway.policy.gate.clear()
    url = gateway.url(f"/s/k{dialect.path}")
    async with asyncio.timeout(60), http.post(url, json=body_of(dialect, stream=True)) as answer:
        await gateway.sessions.close("k")
        assert "session k was closed" in await answer.text()


async def test_an_answer_that_nobody_got_does_not_train_and_may_be_asked_for_again(
    gateway: ServedGateway, http: aiohttp.ClientSession, dialect: Dialect
) -> None:
    url, body, say = gateway.url(f"/s/k{dialect.path}"), body_of(dialect), gateway.policy.say

    def vanish(text: str) -> str | list[int]:
        # Connections break in the instant in which the policy speaks: the turn ends before anybody can notice.
        server = gateway.runner.server
        assert isinstance(server, web.Server)
        for connection in server.connections:
            assert connection.transport is not None
            connection.transport.abort()
        return say(text)

    gateway.policy.say = vanish
    with pytest.raises(aiohttp.ClientError):
        await http.post(url, json=body)
    await until(lambda: bool(unused_turns(gateway.session.history.turns)))
    assert unused_turns(gateway.session.history.turns) == {0: Unused.UNDELIVERED}
    gateway.policy.say = say
    async with http.post(url, json=body) as answer:
        assert answer.status == 200
    assert unused_turns(gateway.session.history.turns) == {0: Unused.UNDELIVERED}
    assert gateway.bugs == []
