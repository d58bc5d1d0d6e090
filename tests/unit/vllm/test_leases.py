"""Updates that go wrong: what a lease takes back, and when the engine has to end."""

import asyncio
import time

import pytest

from echorl_testing.engines.gated_engine import CHAT, DIGEST, Engine, until


async def test_a_lease_that_ends_before_an_apply_resumes():
    engine = Engine()
    await engine.stage()
    await engine.pause(0.5)
    assert engine.vllm.paused
    await until(lambda: not engine.vllm.paused)
    assert (await engine.identity())["paused"] is False
    assert (await engine.apply())[0] == 409
    assert engine.ended == 0


async def test_a_lease_that_ends_after_an_apply_ends_the_engine():
    engine = Engine()
    await engine.stage()
    await engine.pause(1.0)
    assert (await engine.apply())[0] == 200
    await until(lambda: engine.ended == 1)
    assert engine.vllm.paused


async def test_a_hanging_apply_outlives_its_lease_and_ends_the_engine():
    engine = Engine()
    engine.vllm.hold["echorl_apply"] = asyncio.Event()
    await engine.stage()
    await engine.pause(1.0)
    hanging = asyncio.create_task(engine.apply())
    await until(lambda: engine.ended == 1)
    engine.vllm.hold["echorl_apply"].set()
    assert (await hanging)[0] == 200


async def test_a_lease_renewed_during_an_apply_holds():
    engine = Engine()
    engine.vllm.hold["echorl_apply"] = asyncio.Event()
    await engine.stage()
    await engine.pause(1.0)
    first_end = time.monotonic() + 1.0
    running = asyncio.create_task(engine.apply())
    await until(lambda: "echorl_apply" in engine.vllm.calls)
    assert (await engine.pause(30))[0] == 200
    await until(lambda: time.monotonic() > first_end + 0.1)
    engine.vllm.hold["echorl_apply"].set()
    assert (await running)[0] == 200
    assert (await engine.resume())[0] == 200
    assert engine.ended == 0


async def test_an_apply_that_touched_nothing_leaves_the_lease_to_resume():
    engine = Engine()
    await engine.stage()
    await engine.pause(1.0)
    engine.vllm.apply_answers = [{"error": "not staged: aborted"}]
    assert (await engine.apply())[:2] == (409, {"error": "not staged: aborted"})
    await until(lambda: not engine.vllm.paused)
    assert engine.ended == 0


HALF = [{"error": "RuntimeError: shapes", "broken": True}]
GOOD = {"attempt": 1, "version": 1, "digest": DIGEST, "seconds": 0.1}


@pytest.mark.parametrize(
    "answers", [HALF, [{"applied": GOOD}, {"error": "not staged"}], [{"applied": {**GOOD, "version": 2}}]]
)
async def test_a_half_applied_version_ends_the_engine(answers):
    engine = Engine()
    await engine.update(version=1)
    await engine.stage()
    await engine.pause()
    engine.vllm.apply_answers = answers
    status, body, _ = await engine.apply()
    assert status == 500
    assert "half replaced" in body["error"]
    assert (await engine.ask("POST", CHAT, {}))[0] == 409
    assert (await engine.resume())[0] == 409
    assert (await engine.identity())["ready"] is False
    await until(lambda: engine.ended == 1)
    assert engine.vllm.paused


async def test_an_engine_that_answers_an_apply_with_an_error_ends():
    engine = Engine()
    await engine.stage()
    await engine.pause()
    original = engine.vllm._answer

    async def dying(path, query, body):
        if body and body.get("method") == "echorl_apply":
            raise RuntimeError("EngineDeadError")
        return await original(path, query, body)

    engine.vllm._answer = dying
    status, body, _ = await engine.apply()
    assert status == 502
    assert "EngineDeadError" in body["error"]
    await until(lambda: engine.ended == 1)


async def test_a_failed_pause_is_taken_back():
    engine = Engine()
    engine.vllm.failing["/pause"] = 500
    status, body, _ = await engine.pause()
    assert status == 502
    assert "/pause: HTTP 500" in body["error"]
    assert engine.vllm.calls == ["/pause", "/resume"]
    assert (await engine.identity())["paused"] is False
    engine.vllm.failing["/resume"] = 500
    assert (await engine.pause())[0] == 502
    await until(lambda: engine.ended == 1)


async def test_a_resume_that_fails_at_the_lease_end_ends_the_engine():
    engine = Engine()
    engine.vllm.failing["/resume"] = 500
    await engine.pause(0.5)
    await until(lambda: engine.ended == 1)


async def test_a_pause_that_hangs_is_given_up_at_its_lease():
    engine = Engine()
    engine.vllm.hold["/pause"] = asyncio.Event()
    status, body, _ = await engine.pause(0.05)
    assert status == 504
    assert "no answer from the engine within 0.05 s" in body["error"]
