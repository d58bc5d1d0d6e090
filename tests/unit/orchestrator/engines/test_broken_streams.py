"""Streams that break off, over real HTTP: turns go on at another engine, and come out as those that nobody cut."""

import asyncio
import itertools
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from echorl_core.config import SamplingConfig
from echorl_orchestrator.engines.generation import Generation
from echorl_orchestrator.engines.timing import Timing
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.gateway.tokens import sampled_columns
from echorl_orchestrator.metrics.process_counters import TURN_TOKENS_KEPT, TURN_TOKENS_LOST
from echorl_testing.engines.fake_engine import FakeEngine, logprob, policy

HOWS = ("cut", "half", "end", "abort", "error")
CAUSES = {"abort": "aborted", "error": "aborted", "still": "stalled"}
PROMPT = [1, 2]
TIMING = Timing(identity_s=0.02, stage_again_s=0.005, retry_first_s=0.02, stall_s=60.0, elsewhere_s=0.1)


def following(prefix):
    """A function of all tokens before; 0 ends a turn."""
    return 0 if len(prefix) == 90 else 1 + sum((place + 1) * token for place, token in enumerate(prefix, 2)) % 99


def expected(max_tokens):
    ids = []
    while len(ids) < max_tokens and 0 not in ids:
        ids.append(following([*PROMPT, *ids]))
    return ids, [logprob(0, len(PROMPT) + place) for place in range(len(ids))], "stop" if 0 in ids else "length"


async def ask(harness: Any, max_tokens: int, episode: str = "e1", **sampling: float) -> Generation:
    return await harness.pool.generate(
        episode=episode,
        prompt_ids=PROMPT,
        sampling=SamplingConfig(**sampling),
        max_tokens=max_tokens,
        stop_ids=[0],
    )


async def both_serve(harness: Any, *engines: FakeEngine) -> None:
    for engine in engines:
        engine.next_token = following
    harness.pool.announce(policy(0))
    await harness.eventually(lambda: harness.pool.metrics_snapshot()["engines"] == len(engines))


async def settled_at(harness: Any, first: FakeEngine, second: FakeEngine) -> tuple[FakeEngine, FakeEngine]:
    """The engine that the episode sticks to from now on, and the other."""
    made = await ask(harness, 4)
    return (first, second) if made.engine == first.address else (second, first)


def counted(counter, cause):
    return counter.labels(cause)._value.get()


async def test_wherever_and_however_a_turn_is_cut_it_is_the_same_turn(running_pool):
    drawn, whole = random.Random(4), expected(200)
    async with FakeEngine() as first, FakeEngine() as second, running_pool(first, second) as harness:
        await both_serve(harness, first, second)
        assert len(whole[0]) > 70
        for number in range(30):
            for engine in (first, second):
                # Behind one token at least: a turn that two streams in a row bring nothing to is given up.
                engine.breaks = [(drawn.randint(1, 40), drawn.choice(HOWS)) for _ in range(drawn.randint(0, 2))]
            plan = [list(engine.breaks) for engine in (first, second)]
            made = await ask(harness, 200, f"e{number}")
            assert (made.token_ids, made.finish_reason) == (whole[0], whole[2]), plan
            assert made.logprobs == pytest.approx(whole[1]), plan
        for budget in range(8, 50, 7):
            first.breaks = second.breaks = [(budget // 2, "cut"), (budget // 3, "half")]
            made = await ask(harness, budget, f"b{budget}")
            assert (made.token_ids, made.finish_reason) == (expected(budget)[0], expected(budget)[2])


@pytest.mark.parametrize("how", [*HOWS, "still"])
async def test_a_turn_goes_on_at_another_engine_with_what_is_left(running_pool, how):
    timing = replace(TIMING, stall_s=1.0) if how == "still" else TIMING
    async with FakeEngine() as first, FakeEngine() as second, running_pool(first, second, timing=timing) as harness:
        await both_serve(harness, first, second)
        home, other = await settled_at(harness, first, second)
        home.breaks = [(33, how)]
        kept = counted(TURN_TOKENS_KEPT, CAUSES.get(how, "lost"))
        made = await ask(harness, 60)
        ids, logprobs, reason = expected(60)
        assert (made.token_ids, made.finish_reason) == (ids, reason)
        assert made.logprobs == pytest.approx(logprobs)
        assert [part.token_ids for part in made.segments] == [ids[:33], ids[33:]]
        assert made.segments[0].engine == home.address
        assert made.segments[1].engine == made.engine == other.address
        assert counted(TURN_TOKENS_KEPT, CAUSES.get(how, "lost")) == kept + 33
        (body,) = other.bodies("generate")
        assert (body["token_ids"], body["sampling_params"]["max_tokens"]) == ([*PROMPT, *ids[:33]], 27)


async def test_every_token_keeps_the_version_that_it_was_sampled_with(running_pool):
    async with FakeEngine() as first, FakeEngine() as second, running_pool(first, second) as harness:
        await both_serve(harness, first, second)
        home, other = await settled_at(harness, first, second)
        home.breaks = [(10, "still")]
        call = asyncio.create_task(ask(harness, 20))
        await harness.eventually(lambda: home.breaks == [] and home.counters["generation_tokens_total"] == 14)
        other_gate = other.hold("generate")
        await home.stop()
        await other.until(lambda: len(other.running) == 1)
        harness.pool.announce(policy(3))
        await harness.pool.wait_served(3, 60)
        other_gate.set()
        made = await call
        low, high = made.versions()
        assert made.token_ids == expected(20)[0]
        # The second engine was asked before its update and answered after it: what it sampled may be of either version.
        assert (low[:10].tolist(), high[:10].tolist()) == ([0] * 10, [0] * 10)
        assert (low[10:].tolist(), high[10:].tolist()) == ([0] * 10, [3] * 10)
        assert (made.version_low, made.version_high) == (0, 3)
        columns = sampled_columns(
            made.token_ids, made.logprobs, versions=made.versions(), turn=0, temperature=1.0, first_origin=1
        )
        assert columns.version_low.tolist() == [0] * 20
        assert columns.version_high.tolist() == [0] * 10 + [3] * 10
        assert columns.logprobs.tolist() == pytest.approx(made.logprobs)
        assert columns.usable.all()


async def test_a_turn_with_penalties_on_what_was_sampled_begins_anew(running_pool):
    async with FakeEngine() as first, FakeEngine() as second, running_pool(first, second) as harness:
        await both_serve(harness, first, second)
        home, other = await settled_at(harness, first, second)
        home.breaks = [(9, "cut")]
        lost = counted(TURN_TOKENS_LOST, "lost")
        assert (await ask(harness, 20, presence_penalty=0.5)).token_ids == expected(20)[0]
        (body,) = other.bodies("generate")
        assert (body["token_ids"], body["sampling_params"]["max_tokens"]) == (PROMPT, 20)
        assert counted(TURN_TOKENS_LOST, "lost") == lost + 9


async def test_a_request_that_ends_engines_is_given_up(running_pool):
    async with FakeEngine() as first, FakeEngine() as second, running_pool(first, second) as harness:
        await both_serve(harness, first, second)
        first.breaks, second.breaks = [(0, "cut")] * 3, [(0, "cut")] * 3
        with pytest.raises(EpisodeError) as caught:
            await ask(harness, 20)
        assert caught.value.kind is ErrorKind.PROVIDER
        assert len(first.bodies("generate") + second.bodies("generate")) == 2


def event(ids, logprobs, reason=None):
    content = [{"token_id": token, "logprob": value} for token, value in itertools.zip_longest(ids, logprobs)]
    choice = {"token_ids": ids, "logprobs": {"content": content[: len(logprobs)]}, "finish_reason": reason}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


GOOD = event([5, 6], [-1.0, -2.0])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GOOD + event([7, 8], [-1.0]), "2 token ids and 1 logprobs"),
        (GOOD + event([7], [float("nan")]), "event cannot be read|logprob nan"),
        (GOOD + event([7], [3.5]), r"logprob 3\.5, accepted are finite numbers up to 0"),
        (GOOD + event([7] * 30, [-1.0] * 30), "found 32 tokens, accepted are 20"),
        (GOOD + event([7], [-1.0], "repetition"), "finish_reason: found 'repetition'"),
        (GOOD + "data: {nothing\n\n", "event cannot be read"),
        (event([], [], "stop"), "found 0 token ids"),
    ],
)
async def test_a_stream_of_garbage_is_a_named_error(running_pool, text, reason):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        await both_serve(harness, engine)
        engine.streams.append(web.Response(text=text, content_type="text/event-stream"))
        with pytest.raises(EpisodeError, match=reason) as caught:
            await ask(harness, 20)
        assert caught.value.kind is ErrorKind.INVALID_RESPONSE


async def test_an_answer_that_is_no_stream_or_of_an_unknown_version_is_a_named_error(running_pool):
    async with FakeEngine() as engine, running_pool(engine, timing=Timing(identity_s=60.0)) as harness:
        await both_serve(harness, engine)
        engine.streams.append(web.json_response({"choices": []}))
        with pytest.raises(EpisodeError, match="content type: found application/json") as caught:
            await ask(harness, 20)
        assert caught.value.kind is ErrorKind.INVALID_RESPONSE
        engine.held = {**engine.held, "version": 9}
        with pytest.raises(EpisodeError, match="found 9, accepted is 0, which this pool has applied") as caught:
            await ask(harness, 20)
        assert caught.value.kind is ErrorKind.INVALID_RESPONSE
