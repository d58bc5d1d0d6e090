"""One side of the dispatch part of ``benchmarks.orchestrator``, in a process of its own; prints one line of JSON.

Every side plays the same episodes: ``TURNS`` turns, a prompt that begins with ``FIRST`` tokens and grows by what the
engine answered and ``FED`` tokens of an environment; each turn's ids and logprobs must come back.
"""

import argparse
import asyncio
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import msgspec
import uvloop
from openai import AsyncOpenAI

from benchmarks.orchestrator_server import BOOT, TOKENS
from echorl_core.config import SamplingConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import HEADER_SESSION
from echorl_core.rundir import RunDirectory
from echorl_core.wire.weights import PolicyId
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.engines.answers import parse_frame
from echorl_orchestrator.engines.bodies import GENERATE, generate_body
from echorl_orchestrator.engines.changes import Changes
from echorl_orchestrator.engines.client import GenerationClient
from echorl_orchestrator.engines.dispatch import Dispatcher, believed, check_status
from echorl_orchestrator.engines.engine import Engine, EngineState
from echorl_orchestrator.engines.generation import Generation
from echorl_orchestrator.engines.journal.journal import TurnJournal
from echorl_orchestrator.engines.journal.parts import TurnKey
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.turns import SessionSpec
from echorl_testing.orchestrator.scripted_policy import write_byte_tokenizer

FIRST, FED, TURNS = 512, 128, 8
FOUR_LETTERS = "abcd"
"""One token's worth of text, for clients that send text."""

Turn = Callable[[int, int], Awaitable[int]]
"""From an episode and a turn's number to the tokens that came back with a logprob."""


def _prompt(turn: int) -> list[int]:
    return list(range(1000, 1000 + FIRST + turn * (TOKENS + FED)))


def _parts(port: int) -> tuple[GenerationClient, Engine, Changes]:
    """What it takes to reach one engine that serves version 3."""
    changes = Changes()
    engine = Engine(f"127.0.0.1:{port}", changes.notify)
    engine.boot_id = BOOT
    for state in (EngineState.STARTING, EngineState.SYNCING, EngineState.SERVING):
        engine.move(state)
    engine.held = PolicyId(attempt=1, version=3, digest="digest")
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    return GenerationClient(session), engine, changes


def dispatcher(port: int, journal: TurnJournal | None = None) -> Dispatcher:
    """Our way to one engine that serves version 3."""
    client, engine, changes = _parts(port)
    return Dispatcher(client, lambda: [engine], changes, 60.0, journal=journal)


async def _dispatch(port: int, journal: TurnJournal | None = None) -> Turn:
    """Our requests: engine chosen, body, headers, answer checked, version stamped."""
    ours, sampling = dispatcher(port, journal), SamplingConfig(max_completion_tokens=TOKENS)

    async def turn(episode: int, number: int) -> int:
        if journal is not None and number == 0:
            journal.begins(f"e{episode}", TurnKey("", episode, 0), 0)
        found = await ours.generate(
            episode=f"e{episode}", prompt_ids=_prompt(number), sampling=sampling, max_tokens=TOKENS, stop_ids=[7]
        )
        if journal is not None and number == TURNS - 1:
            journal.ends(f"e{episode}")
        return len(found.logprobs)

    return turn


_writing: list[asyncio.Task[None]] = []


async def _journal(port: int) -> Turn:
    """The same with a turn journal, on whatever holds temporary files."""
    run = RunDirectory(Path(tempfile.mkdtemp()))
    run.attempt(1).mkdir(parents=True)
    journal = TurnJournal.opened(run, RunIdentity("run", "uid", 1), lambda *_: False)
    _writing.append(asyncio.create_task(journal.run()))
    _writing[-1].add_done_callback(lambda _: shutil.rmtree(run.root))
    return await _dispatch(port, journal)


class _Unstreamed(Dispatcher):
    """Asks for a turn as it was before turns were streamed, by what sends other requests today."""

    async def turn(self, episode: str, prompt: list[int], sampling: SamplingConfig) -> Generation:
        engine = await self._placement.of_episode(episode)
        body = generate_body(prompt_ids=prompt, sampling=sampling, max_tokens=TOKENS, stop_ids=[7])
        body = body.replace(b'"stream":true', b'"stream":false')
        request, started, version = self._meter.asked(engine.address, episode), time.monotonic(), engine.version
        try:
            answer = await self._send(engine, GENERATE, body, {HEADER_SESSION: episode})
        finally:
            self._meter.answered(request, lost=False)
        with believed(engine):
            check_status(engine, answer)
            found = parse_frame(answer.body)
        if found is None or found.finish_reason is None or answer.version is None:
            raise RuntimeError(f"no turn: {answer}")
        self._meter.sampled(episode, len(found.token_ids))
        return Generation(
            token_ids=found.token_ids,
            logprobs=found.logprobs,
            finish_reason=found.finish_reason,
            version_low=version,
            version_high=answer.version,
            engine=engine.address,
            boot_id=engine.boot_id or "",
            seconds=time.monotonic() - started,
        )


async def _whole(port: int) -> Turn:
    """The same for turns that come whole."""
    client, engine, changes = _parts(port)
    ours, sampling = _Unstreamed(client, lambda: [engine], changes, 60.0), SamplingConfig(max_completion_tokens=TOKENS)

    async def turn(episode: int, number: int) -> int:
        return len((await ours.turn(f"e{episode}", _prompt(number), sampling)).logprobs)

    return turn


async def _raw_aiohttp(port: int) -> Turn:
    """Only aiohttp and msgspec: the same body sent, the same answer decoded, nothing checked."""
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    sampling, headers = SamplingConfig(max_completion_tokens=TOKENS), {"Content-Type": "application/json"}

    async def turn(_: int, number: int) -> int:
        body = generate_body(prompt_ids=_prompt(number), sampling=sampling, max_tokens=TOKENS, stop_ids=[7])
        async with session.post(f"http://127.0.0.1:{port}{GENERATE}", data=body, headers=headers) as response:
            events = (await response.read()).split(b"\n\n")[:-2]
        found = [msgspec.json.decode(event.removeprefix(b"data: ")) for event in events]
        return sum(len(one["choices"][0]["logprobs"]["content"]) for one in found)

    return turn


async def _httpx(port: int) -> Turn:
    """The client httpx with JSON in and out."""
    client = httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=120.0)

    async def turn(_: int, number: int) -> int:
        params = {"max_tokens": TOKENS, "logprobs": 1}
        body = {"model": "policy", "token_ids": _prompt(number), "sampling_params": params}
        response = await client.post(f"http://127.0.0.1:{port}/inference/v1/generate", json=body)
        return len(response.json()["choices"][0]["logprobs"]["content"])

    return turn


async def _openai(port: int) -> Turn:
    """The OpenAI client with chats of as many tokens, four letters each."""
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=120.0)

    async def turn(_: int, number: int) -> int:
        messages: list[Any] = [{"role": "user", "content": FOUR_LETTERS * FIRST}]
        for _ in range(number):
            messages.append({"role": "assistant", "content": FOUR_LETTERS * TOKENS})
            messages.append({"role": "user", "content": FOUR_LETTERS * FED})
        found = await client.chat.completions.create(
            model="policy", messages=messages, max_tokens=TOKENS, logprobs=True, temperature=1.0
        )
        logprobs = found.choices[0].logprobs
        return len(logprobs.content or []) if logprobs else 0

    return turn


async def _session(port: int) -> Turn:
    """A whole turn of ours: messages compared with the history, rendered, tokenized, sampled, parsed, recorded."""
    with tempfile.TemporaryDirectory() as folder:
        codec = CompactCodec(TextTokenizer(write_byte_tokenizer(Path(folder)), name="bytes"))
    ours, sampling = dispatcher(port), SamplingConfig(max_completion_tokens=TOKENS)
    sessions: dict[int, tuple[GatewaySession, list[dict[str, Any]]]] = {}

    async def turn(episode: int, number: int) -> int:
        if number == 0:
            spec = SessionSpec(f"k{episode}", f"e{episode}", codec, ours, sampling, 1 << 20)
            sessions[episode] = GatewaySession(spec), [{"role": "user", "content": "a" * FIRST}]
        session, messages = sessions[episode]
        found = await session.turn(messages)
        messages += [found.message, {"role": "user", "content": "b" * FED}]
        return found.completion_tokens

    return turn


SIDES = {
    "dispatch": _dispatch,
    "journal": _journal,
    "whole": _whole,
    "session": _session,
    "raw aiohttp": _raw_aiohttp,
    "httpx": _httpx,
    "openai": _openai,
}


async def _lags(until: asyncio.Event) -> list[float]:
    """By how many seconds the loop was late, asked every 5 ms."""
    lags = []
    while not until.is_set():
        due = time.perf_counter() + 0.005
        await asyncio.sleep(0.005)
        lags.append(time.perf_counter() - due)
    return sorted(lags)


async def play(side: str, port: int, *, at_once: int, seconds: float) -> dict[str, float]:
    """Episodes one after the other in ``at_once`` places, for so many seconds after a warm-up."""
    turn = await SIDES[side](port)
    numbers, counted, over = itertools.count(), 0, asyncio.Event()

    async def place() -> None:
        nonlocal counted
        while not over.is_set():
            episode = next(numbers)
            for number in range(TURNS):
                if await turn(episode, number) != TOKENS:
                    raise RuntimeError(f"{side}: an answer of another length")
                counted += 1

    places = [asyncio.create_task(place()) for _ in range(at_once)]
    await asyncio.sleep(max(2.0, seconds / 5))
    before, cpu, wall = counted, time.process_time(), time.perf_counter()
    done = asyncio.Event()
    lags = asyncio.create_task(_lags(done))
    await asyncio.sleep(seconds)
    turns, cpu, wall = counted - before, time.process_time() - cpu, time.perf_counter() - wall
    done.set()
    late = await lags
    over.set()
    for task in places:
        task.cancel()
    ended = await asyncio.gather(*places, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error
    quantiles = {f"lag_p{share}_ms": 1e3 * late[int(share / 100 * (len(late) - 1))] for share in (50, 99)}
    return {"turns": turns, "turns_per_cpu_s": turns / cpu, "turns_per_s": turns / wall, "cpu": cpu / wall, **quantiles}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    print(json.dumps(uvloop.run(play(options.side, options.port, at_once=options.at_once, seconds=options.seconds))))
