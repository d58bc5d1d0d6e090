"""An engine's gate after a notice: what it still does, and when it ends."""

import asyncio
import time
from typing import Any

import pytest

from echorl_testing.engines.gated_engine import CHAT, Engine, until
from echorl_vllm.middleware import STAYS_S


async def test_open_requests_are_ended_new_ones_refused_and_the_engine_ends_as_soon_as_it_may() -> None:
    engine = Engine()
    await engine.update()
    engine.vllm.hold[CHAT] = asyncio.Event()
    call = asyncio.create_task(engine.ask("POST", CHAT, {}))
    await until(lambda: CHAT in engine.vllm.calls)
    engine.gate.give_notice(600.0)
    status, body, _ = await engine.ask("POST", CHAT, {}, token=None)
    assert (status, body["error"]) == (503, "the engine was given notice and takes no more requests")
    assert (await engine.ask("GET", "/health"))[0] == 200, "else its kubelet would end it at once"
    assert ((await engine.identity())["draining"], (await engine.identity())["running"]) == (True, 1)
    assert engine.left == []
    engine.vllm.hold[CHAT].set()
    assert (await call)[0] == 200
    await until(lambda: engine.left)
    assert engine.left == ["given notice: no request was open"]
    assert "/abort_requests" not in engine.vllm.calls


@pytest.mark.parametrize("answers", [200, 500])
async def test_what_does_not_end_in_time_is_ended_with_what_it_has(answers: int) -> None:
    engine = Engine()
    await engine.update()
    engine.vllm.hold[CHAT] = asyncio.Event()
    engine.vllm.failing["/abort_requests"] = answers
    call = asyncio.create_task(engine.ask("POST", CHAT, {}))
    await until(lambda: CHAT in engine.vllm.calls)
    engine.gate.give_notice(2.1)
    await until(lambda: "/abort_requests" in engine.vllm.calls)
    if answers == 200:
        assert engine.left == []
        engine.vllm.hold[CHAT].set()
        await call
    await until(lambda: engine.left)
    assert engine.left == ["given notice: 1 requests go on elsewhere"]
    call.cancel()


async def test_an_update_that_is_under_way_is_probed_after_a_notice() -> None:
    engine = Engine()
    await engine.update()
    engine.vllm.hold[CHAT] = asyncio.Event()
    call = asyncio.create_task(engine.ask("POST", CHAT, {}))
    await until(lambda: CHAT in engine.vllm.calls)
    await engine.stage(2)
    await engine.pause()
    engine.gate.give_notice(600.0)
    await engine.apply(2)
    await engine.resume()
    assert (await engine.ask("POST", "/v1/completions", {}))[0] == 200
    assert (await engine.ask("POST", "/v1/completions", {}, token=None))[0] == 503
    assert (await engine.ask("POST", "/v1/completions", {}, token="another"))[0] == 503
    engine.vllm.hold[CHAT].set()
    assert (await call)[0] == 200
    await until(lambda: engine.left)


async def needed(engine: Engine, seconds: str) -> Any:
    status, identity, _ = await engine.ask("GET", "/echorl/identity", query=f"needed={seconds}")
    assert status == 200
    return identity


async def test_an_engine_that_is_needed_takes_requests_until_it_is_not() -> None:
    engine = Engine()
    await engine.update()
    await needed(engine, "600")
    engine.gate.give_notice(600.0)
    told = await engine.identity()
    assert (told["noticed"], told["draining"]) == (True, False)
    assert (await engine.ask("POST", CHAT, {}, token=None))[0] == 200
    await needed(engine, "0")
    await until(lambda: engine.left)
    assert (await engine.ask("POST", CHAT, {}, token=None))[0] == 503
    assert engine.left == ["given notice: no request was open"]


async def test_an_engine_takes_requests_again_when_it_hears_that_it_is_needed_after_all() -> None:
    engine = Engine()
    await engine.update()
    await needed(engine, "0")
    engine.gate.give_notice(600.0)
    assert (await engine.ask("POST", CHAT, {}, token=None))[0] == 503
    assert (await needed(engine, "600"))["noticed"], "it stays for a moment, though it has nothing to do"
    assert (await engine.ask("POST", CHAT, {}, token=None))[0] == 200


async def test_an_engine_is_needed_for_as_long_as_somebody_says_so() -> None:
    engine = Engine()
    await engine.update()
    began = time.monotonic()
    await needed(engine, "0.5")
    engine.gate.give_notice(600.0)
    await until(lambda: engine.left)
    assert time.monotonic() - began >= 0.5 + STAYS_S
    assert (await engine.identity())["draining"]


async def test_an_engine_that_is_needed_ends_in_time() -> None:
    engine = Engine()
    await engine.update()
    await needed(engine, "inf")
    engine.vllm.hold[CHAT] = asyncio.Event()
    engine.gate.give_notice(4.0)
    call = asyncio.create_task(engine.ask("POST", CHAT, {}, token=None))
    await until(lambda: "/abort_requests" in engine.vllm.calls)
    assert (await engine.ask("POST", CHAT, {}, token=None))[0] == 503
    await until(lambda: engine.left)
    assert engine.left == ["given notice: 1 requests go on elsewhere"]
    call.cancel()


@pytest.mark.parametrize("given", ["long", "nan"])
async def test_what_is_no_time_is_refused(given: str) -> None:
    status, body, _ = await Engine().ask("GET", "/echorl/identity", query=f"needed={given}")
    assert (status, body["error"]) == (400, f"needed is '{given}', accepted: a number of seconds")
