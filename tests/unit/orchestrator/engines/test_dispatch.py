"""Requests for tokens: where they go, what is sent, what is refused, and what cancelling does."""

import asyncio
import time

import pytest
from aiohttp import web

from echorl_orchestrator.engines.bodies import stream_interval
from echorl_orchestrator.engines.dispatch import FRUITLESS
from echorl_orchestrator.engines.generation import TokenGenerator
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.metrics.process_counters import IMPOSSIBLE_ANSWERS
from echorl_testing.engines.fake_engine import FakeEngine, logprob, policy


async def test_generation_returns_ids_logprobs_and_where_they_came_from(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(2))
        await harness.pool.wait_served(2, 60)
        generation = await harness.generate()
        assert generation.token_ids == [7, 8, 9]
        assert generation.logprobs == pytest.approx([logprob(2, position) for position in (2, 3, 4)])
        assert generation.finish_reason == "stop"
        assert (generation.version_low, generation.version_high) == (2, 2)
        assert (generation.engine, generation.boot_id) == (engine.address, engine.boot_id)
        assert generation.seconds > 0


async def test_every_sampling_field_is_sent_and_no_seed(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        await harness.generate()
        (body,) = engine.bodies("generate")
        assert body["token_ids"] == [1, 2]
        assert body["sampling_params"] == {
            "n": 1,
            "temperature": 0.7,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "max_tokens": 8,
            "min_tokens": 0,
            "ignore_eos": False,
            "stop_token_ids": [9],
            "logprobs": 1,
            "detokenize": False,
            "skip_special_tokens": False,
            "stream_interval": 64,
        }


@pytest.mark.parametrize(("pace", "tokens"), [(None, 64), (1e6, 64), (128.6, 64), (40.4, 20), (0.1, 8)])
def test_a_frame_has_the_tokens_of_half_a_second(pace, tokens):
    assert stream_interval(pace) == tokens


async def test_a_slow_engine_is_asked_for_smaller_frames(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        engine.token_s = 0.5
        for _ in range(2):
            await harness.generate()
        before, after = (body["sampling_params"]["stream_interval"] for body in engine.bodies("generate"))
        # 2 tokens a second, which a busy machine may take for more where it hears late of the first.
        assert before == 64
        assert 8 <= after <= 20


def choice(**changes):
    good = {
        "index": 0,
        "token_ids": [7, 8],
        "logprobs": {"content": [{"token_id": 7, "logprob": -1.0}, {"token_id": 8, "logprob": -2.0}]},
        "finish_reason": "length",
    }
    return {"choices": [{**good, **changes}]}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (choice(logprobs=None), "2 token ids and 0 logprobs"),
        (choice(token_ids=[7]), "1 token ids and 2 logprobs"),
        (choice(token_ids=[]), "0 token ids"),
        (choice(token_ids=[7, 9]), "logprob of token 8 stands at token 9"),
        (choice(logprobs={"content": [{"logprob": -1.0}, {"logprob": None}]}), "position 1: logprob None"),
        (choice(logprobs={"content": [{"logprob": -9999.0}, {"logprob": -1.0}]}), "position 0: logprob -9999.0"),
        (choice(finish_reason="repetition"), "finish_reason: found 'repetition'"),
        ({"choices": []}, "choices: found 0"),
        ({"no": "choices"}, "choices: found 0"),
        (["no event"], "cannot be read"),
    ],
)
async def test_unusable_answer_is_an_invalid_response(running_pool, answer, reason):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        engine.answers["generate"].append(web.json_response(answer))
        with pytest.raises(EpisodeError, match=reason) as caught:
            await harness.generate()
        assert caught.value.kind is ErrorKind.INVALID_RESPONSE


async def test_not_a_number_is_an_invalid_response(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        text = '{"choices": [{"token_ids": [7], "logprobs": {"content": [{"logprob": NaN}]}, "finish_reason": "stop"}]}'
        engine.answers["generate"].append(web.Response(text=text, content_type="application/json"))
        with pytest.raises(EpisodeError) as caught:
            await harness.generate()
        assert caught.value.kind is ErrorKind.INVALID_RESPONSE


def sampled(*logprobs):
    """An answer to ``generate``."""
    entries = [{"token_id": 7 + place, "logprob": value} for place, value in enumerate(logprobs)]
    ids = [entry["token_id"] for entry in entries]
    return web.json_response(choice(token_ids=ids, logprobs={"content": entries}))


def scored(*logprobs):
    """An answer to ``completions``, for the tokens 5, 6, ..."""
    positions = [None, *({str(6 + place): {"logprob": value}} for place, value in enumerate(logprobs))]
    return web.json_response({"choices": [{"prompt_logprobs": positions}]})


@pytest.mark.parametrize("bad", [3.5, 0.002, None])
@pytest.mark.parametrize("route", ["generate", "completions"])
async def test_an_engine_that_answers_what_cannot_be_true_serves_again_after_a_load_and_a_probe(
    running_pool, route, bad
):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        gate, counted = engine.hold("generate"), IMPOSSIBLE_ANSWERS.collect()[0].samples[0].value
        other = harness.call("other")
        await engine.until(lambda: len(engine.running) == 1)
        engine.answers[route].append(sampled(-1.0, bad) if route == "generate" else scored(-1.0, bad))
        with pytest.raises(EpisodeError, match=rf"logprob {bad}, accepted are finite numbers up to 0") as caught:
            await (harness.generate() if route == "generate" else harness.pool.prompt_logprobs(token_ids=[5, 6, 7]))
        assert caught.value.kind is ErrorKind.INVALID_RESPONSE
        assert harness.view(engine).state == "quarantined"
        assert f"logprob {bad}" in harness.view(engine).error
        assert IMPOSSIBLE_ANSWERS.collect()[0].samples[0].value == counted + 1
        gate.set()
        assert (await other).token_ids == (await harness.generate()).token_ids == [7, 8, 9]
        assert engine.named("apply", "completions")[-2:] == ["apply", "completions"]
        assert engine.named().count("apply") == 2


async def test_an_engine_that_does_so_again_and_again_waits_longer_each_time(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        waits = []
        for _ in range(4):
            await harness.pool.wait_served(0, 60)
            engine.answers["generate"].append(sampled(3.5))
            with pytest.raises(EpisodeError):
                await harness.generate()
            began = time.monotonic()
            await harness.pool.wait_served(0, 60)
            waits.append(time.monotonic() - began)
    # 20, 40, 80 and 100 ms of this pool's timing, and the update itself.
    assert all(took >= least for took, least in zip(waits, (0.02, 0.04, 0.08, 0.1), strict=True)), waits


async def test_what_rounding_puts_above_zero_is_zero(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        engine.answers["generate"].append(sampled(-1.0, 5e-4))
        assert (await harness.generate()).logprobs == [-1.0, 0.0]
        engine.answers["completions"].append(scored(5e-4, -1.0))
        assert await harness.pool.prompt_logprobs(token_ids=[5, 6, 7]) == [0.0, -1.0]
        assert harness.view(engine).state == "serving"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (500, ErrorKind.PROVIDER),
        (503, ErrorKind.PROVIDER),
        (409, ErrorKind.PROVIDER),
        (400, ErrorKind.INVALID_RESPONSE),
    ],
)
async def test_error_status_has_a_kind_and_the_engines_words(running_pool, status, kind):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        engine.fail("generate", status, times=FRUITLESS)
        with pytest.raises(EpisodeError, match=f"HTTP {status}: scripted {status}") as caught:
            await harness.generate()
        assert caught.value.kind is kind


async def test_abort_by_the_engine_is_the_providers_failure(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        for _ in range(FRUITLESS):
            engine.breaks.append((0, "abort"))
        with pytest.raises(EpisodeError, match="aborted") as caught:
            await harness.generate()
        assert caught.value.kind is ErrorKind.PROVIDER


async def test_cancelling_a_call_reaches_the_engine(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        engine.hold("generate")
        call = harness.call()
        await engine.until(lambda: len(engine.running) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await engine.until(lambda: engine.cancelled == ["generate"] and not engine.running)


async def test_episodes_stick_and_spread_by_load(running_pool):
    async with FakeEngine() as first, FakeEngine() as second, running_pool(first, second) as harness:
        harness.pool.announce(policy(0))
        await harness.eventually(lambda: harness.pool.metrics_snapshot()["engines"] == 2)
        gates = [first.hold("generate"), second.hold("generate")]
        calls = [harness.call(f"e{i}") for i in range(6)]
        await harness.eventually(lambda: len(first.running) == len(second.running) == 3)
        for gate in gates:
            gate.set()
        home = {f"e{i}": generation.engine for i, generation in enumerate(await asyncio.gather(*calls))}
        again = await asyncio.gather(*(harness.generate(episode) for episode in home))
        assert [generation.engine for generation in again] == list(home.values())


async def test_episode_stays_although_another_engine_has_less_to_do(running_pool):
    async with FakeEngine() as first, FakeEngine() as second, running_pool(first, second) as harness:
        harness.pool.announce(policy(0))
        await harness.eventually(lambda: harness.pool.metrics_snapshot()["engines"] == 2)
        home = first if (await harness.generate("a")).engine == first.address else second
        gate = home.hold("generate")
        calls = [harness.call("a"), harness.call("a"), harness.call("a")]
        await home.until(lambda: len(home.running) == 3)
        gate.set()
        assert {generation.engine for generation in await asyncio.gather(*calls)} == {home.address}


async def test_released_episode_is_placed_anew(running_pool):
    async with FakeEngine() as first, FakeEngine() as second, running_pool(first, second) as harness:
        harness.pool.announce(policy(0))
        await harness.eventually(lambda: harness.pool.metrics_snapshot()["engines"] == 2)
        home = (await harness.generate("a")).engine
        other = (await harness.generate("b")).engine
        assert home != other
        harness.pool.release("b")
        harness.pool.release("unknown")
        loaded = first if first.address == home else second
        loaded.hold("generate")
        call = harness.call("a")
        await loaded.until(lambda: len(loaded.running) == 1)
        assert (await harness.generate("b")).engine == other
        loaded.hold("generate").set()
        await call


async def test_call_without_any_engine_ends_with_its_patience(running_pool):
    async with FakeEngine() as engine, running_pool(engine, deadline_s=0.1) as harness:
        await harness.state(engine, "syncing")
        with pytest.raises(
            EpisodeError, match=rf"no engine may serve for 0\.1 s; engines: {engine.address} syncing"
        ) as caught:
            await harness.generate()
        assert caught.value.kind is ErrorKind.PROVIDER


async def test_prompt_logprobs_of_given_tokens(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(1))
        await harness.pool.wait_served(1, 60)
        found = await harness.pool.prompt_logprobs(token_ids=[5, 6, 7])
        assert found == pytest.approx([logprob(1, 1), logprob(1, 2)])
        body = engine.bodies("completions")[-1]
        assert (body["prompt"], body["prompt_logprobs"], body["max_tokens"]) == ([5, 6, 7], 0, 1)


async def test_many_waiting_completions_do_not_delay_admin_calls(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        gate = engine.hold("generate")
        # More than the connections that a client opens to one host by default.
        calls = [harness.call(f"e{i}") for i in range(150)]
        await engine.until(lambda: len(engine.running) == 150, 90)
        # Which none of them makes room for.
        harness.pool.announce(policy(1))
        await harness.pool.wait_served(1, 60)
        assert harness.updates[-1]["running_at_pause"] == 150
        gate.set()
        assert {generation.version_high for generation in await asyncio.gather(*calls)} == {1}


async def test_pool_is_a_token_generator(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        generator: TokenGenerator = harness.pool
        assert generator is harness.pool
