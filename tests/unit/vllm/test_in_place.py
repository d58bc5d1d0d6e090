"""Versions that workers put in place between two steps: no pause, and no cache of the old weights stays."""

import asyncio

from echorl_testing.engines.gated_engine import CHAT, Engine, until


def engine_in_place(*workers: bool) -> Engine:
    engine = Engine(workers=len(workers))
    engine.vllm.in_place = list(workers)
    return engine


async def test_no_pause_is_needed_and_caches_go_after_the_apply():
    engine = engine_in_place(True, True)
    await engine.stage()
    status, body, _ = await engine.apply()
    assert status == 200
    assert [worker["version"] for worker in body["workers"]] == [1, 1]
    assert engine.vllm.calls[-2:] == ["echorl_apply", "/reset_prefix_cache"]
    assert not {"/pause", "/resume"} & set(engine.vllm.calls)
    assert (await engine.identity())["version"] == 1


async def test_one_worker_that_has_to_load_needs_a_pause():
    engine = engine_in_place(True, False)
    await engine.stage()
    status, body, _ = await engine.apply()
    assert status == 409
    assert "not paused" in body["error"]
    assert "echorl_apply" not in engine.vllm.calls
    assert (await engine.pause())[0] == (await engine.apply())[0] == (await engine.resume())[0] == 200
    assert "/reset_prefix_cache" not in engine.vllm.calls


async def test_a_version_that_is_held_and_staged_again_to_be_loaded_needs_a_pause():
    engine = engine_in_place(False)
    await engine.update()
    await engine.stage()
    assert (await engine.apply())[0] == 409


async def test_caches_that_stay_are_an_error_and_the_engine_goes_on():
    engine = engine_in_place(True)
    engine.vllm.failing["/reset_prefix_cache"] = 500
    await engine.stage()
    status, body, _ = await engine.apply()
    assert status == 502
    assert "/reset_prefix_cache: HTTP 500" in body["error"]
    assert engine.ended == 0
    del engine.vllm.failing["/reset_prefix_cache"]
    assert (await engine.apply())[0] == 200


async def test_an_answer_that_ends_while_a_version_is_put_in_place_may_hold_tokens_of_it():
    engine = engine_in_place(True)
    await engine.update(version=1)
    await engine.stage(version=2)
    engine.vllm.hold["echorl_apply"] = asyncio.Event()
    applying = asyncio.create_task(engine.apply(version=2))
    await until(lambda: engine.vllm.calls[-1] == "echorl_apply")
    assert (await engine.ask("POST", CHAT, {}))[2]["x-echorl-version"] == "2"
    assert (await engine.identity())["version"] == 1
    engine.vllm.apply_answers = [{"error": "not staged: aborted"}]
    engine.vllm.hold["echorl_apply"].set()
    assert (await applying)[0] == 409
    assert (await engine.ask("POST", CHAT, {}))[2]["x-echorl-version"] == "1"
