"""Chat completions: what is sent, what comes back, and what is refused."""

import asyncio

import pytest
from aiohttp import web

from echorl_core.config import SamplingConfig
from echorl_orchestrator.codec.engine_rendering import PromptTooLongError
from echorl_orchestrator.engines.dispatch import FRUITLESS
from echorl_orchestrator.engines.generation import ChatGenerator
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_testing.engines.fake_engine import FakeEngine, logprob, policy
from echorl_testing.orchestrator.fake_chat import END, rendered

ASKED = [{"role": "user", "content": "port?"}]
GREP = {
    "type": "function",
    "function": {"name": "grep", "parameters": {"type": "object", "properties": {"pattern": {"type": "string"}}}},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "grep", "arguments": {"pattern": "port"}}}


async def ready(harness):
    harness.pool.announce(policy(2))
    await harness.pool.wait_served(2, 60)
    return harness.pool


async def ask(pool, messages=ASKED, tools=(), *, episode="e1", temperature=0.7, max_tokens=100):
    return await pool.chat(
        episode=episode,
        messages=messages,
        tools=tools,
        sampling=SamplingConfig(temperature=temperature),
        max_tokens=max_tokens,
    )


async def test_chat_returns_prompt_ids_sampled_ids_and_the_message(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        assert isinstance(pool, ChatGenerator)
        answer = await ask(pool)
        start = len(rendered(ASKED))
        assert answer.prompt_ids == rendered(ASKED)
        assert answer.message == {"role": "assistant", "content": "ok"}
        generation = answer.generation
        assert generation.token_ids == [*b"ok", END]
        assert generation.logprobs == pytest.approx([logprob(2, start + place) for place in range(3)])
        assert (generation.finish_reason, generation.version_low, generation.version_high) == ("stop", 2, 2)
        assert (generation.engine, generation.boot_id) == (engine.address, engine.boot_id)
        assert generation.seconds > 0


async def test_the_engine_renders_what_the_turn_is_sampled_from_and_says_what_it_says(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        await ask(await ready(harness), max_tokens=50)
        (asked,) = engine.bodies("render")
        assert asked == {
            "model": "policy",
            "messages": ASKED,
            "max_completion_tokens": 50,
            "skip_special_tokens": False,
            "include_reasoning": True,
            "parallel_tool_calls": True,
        }
        (turn,) = engine.bodies("generate")
        params = turn["sampling_params"]
        assert (turn["token_ids"], params["temperature"], params["max_tokens"]) == (rendered(ASKED), 0.7, 50)
        (said,) = engine.bodies("derender")
        # Without the stop token, which is no part of the text.
        choice = {"index": 0, "token_ids": [*b"ok"], "finish_reason": "stop"}
        assert said["generate_response"]["choices"] == [choice]
        assert (said["generate_response"]["prompt_token_ids"], said["chat_request"]) == (rendered(ASKED), asked)
        sessions = [info["headers"]["X-Session-ID"] for name, info in engine.calls if name.endswith("render")]
        assert sessions == ["e1", "e1"]


@pytest.mark.parametrize("how", ["cut", "half", "abort"])
async def test_a_chat_goes_on_at_another_engine_and_says_what_it_would_have_said(running_pool, how):
    long = {"content": "the port is in /etc/a, as everybody knows" * 5}
    async with FakeEngine() as first, FakeEngine() as second, running_pool(first, second) as harness:
        first.reply = second.reply = lambda _: long
        harness.pool.announce(policy(0))
        await harness.eventually(lambda: harness.pool.metrics_snapshot()["engines"] == 2)
        whole = await ask(harness.pool, max_tokens=400)
        home, other = (first, second) if whole.generation.engine == first.address else (second, first)
        home.breaks = [(70, how)]
        answer = await ask(harness.pool, max_tokens=400)
    assert answer.message == whole.message == {"role": "assistant", **long}
    assert answer.generation.token_ids == whole.generation.token_ids
    assert [len(part.token_ids) for part in answer.generation.segments] == [70, len(whole.generation.token_ids) - 70]
    assert other.bodies("generate")[-1]["token_ids"] == [*whole.prompt_ids, *whole.generation.token_ids[:70]]


@pytest.mark.parametrize("route", ["render", "derender", "tokenize"])
async def test_what_takes_no_weights_is_asked_of_another_engine(running_pool, route):
    async with FakeEngine() as first, FakeEngine() as second, running_pool(first, second) as harness:
        harness.pool.announce(policy(0))
        await harness.eventually(lambda: harness.pool.metrics_snapshot()["engines"] == 2)
        home = first if (await ask(harness.pool)).generation.engine == first.address else second
        home.fail(route, 503)
        assert (await ask(harness.pool)).message == {"role": "assistant", "content": "ok"}
        assert await harness.pool.count_tokens(episode="e1", messages=ASKED, tools=[]) == len(rendered(ASKED))


async def test_the_room_is_vllms_default_where_it_tells_none(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        engine.answers["render"].append(web.json_response({"token_ids": rendered(ASKED), "sampling_params": {}}))
        await ask(await ready(harness), max_tokens=16)
        assert engine.bodies("generate")[0]["sampling_params"]["max_tokens"] == 16


async def test_a_turn_that_is_its_stop_token_says_nothing(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        engine.reply = lambda _: {"content": ""}
        answer = await ask(await ready(harness))
        assert (answer.generation.token_ids, answer.message) == ([END], {"role": "assistant", "content": ""})
        assert not engine.bodies("derender")


async def test_tools_and_calls_travel_in_openais_form_without_a_grammar(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        strict = {**GREP, "function": {**GREP["function"], "strict": True}}
        result = {"role": "tool", "tool_call_id": "call_1", "name": "grep", "content": "etc/a"}
        await ask(pool, [*ASKED, {"role": "assistant", "content": "", "tool_calls": [CALL]}, result], [strict])
        (body,) = engine.bodies("render")
        assert (body["tools"], body["tool_choice"]) == ([GREP], "auto")
        wire = {**CALL, "function": {"name": "grep", "arguments": '{"pattern": "port"}'}}
        assert body["messages"][1] == {"role": "assistant", "content": None, "tool_calls": [wire]}
        assert body["messages"][2] == result


async def test_calls_and_reasoning_come_back(running_pool):
    wire = {**CALL, "function": {"name": "grep", "arguments": '{"pattern": "port"}'}}
    async with FakeEngine() as engine, running_pool(engine) as harness:
        engine.reply = lambda _: {"content": None, "tool_calls": [wire], "reasoning": "hm"}
        answer = await ask(await ready(harness), tools=[GREP], max_tokens=100)
        said = {"role": "assistant", "content": None, "tool_calls": [wire], "reasoning_content": "hm"}
        assert answer.message == said
        assert answer.generation.finish_reason == "stop"


UNUSABLE = [
    ("render", {"token_ids": [], "sampling_params": {"max_tokens": 3}}, "token_ids of the prompt: found none"),
    ("render", {"token_ids": [1], "sampling_params": {"max_tokens": 0}}, "max_tokens: found 0"),
    ("render", {"token_ids": [1]}, "cannot be read"),
    ("derender", {"choices": []}, "choices: found 0"),
    ("derender", {"choices": [{"message": {"tool_calls": [{"id": "a"}]}}]}, "cannot be read"),
]


@pytest.mark.parametrize(("route", "answer", "reason"), UNUSABLE)
async def test_unusable_answer_is_an_invalid_response(running_pool, route, answer, reason):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        engine.answers[route].append(web.json_response(answer))
        with pytest.raises(EpisodeError, match=reason) as caught:
            await ask(pool)
        assert caught.value.kind is ErrorKind.INVALID_RESPONSE


async def test_prompt_that_fills_the_context_is_too_long_and_not_a_failure(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        engine.max_model_len = len(rendered(ASKED)) + 1
        cut = (await ask(pool)).generation
        assert (len(cut.token_ids), cut.finish_reason) == (1, "length")
        engine.max_model_len -= 1
        with pytest.raises(PromptTooLongError, match="maximum context length is 8 tokens"):
            await ask(pool)
        assert harness.view(engine).state == "serving"


@pytest.mark.parametrize(
    "message",
    [
        "The decoder prompt (length 9) plus the number of requested output tokens (at least 1) is longer than the "
        "maximum model length of 9.",
        "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
    ],
)
async def test_other_words_for_a_prompt_without_room(running_pool, message):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        engine.answers["render"].append(web.json_response({"error": {"message": message}}, status=400))
        with pytest.raises(PromptTooLongError):
            await ask(pool)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(500, ErrorKind.PROVIDER), (409, ErrorKind.PROVIDER), (400, ErrorKind.INVALID_RESPONSE)],
)
async def test_error_status_has_a_kind_and_the_engines_words(running_pool, status, kind):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        engine.fail("render", status, times=FRUITLESS)
        with pytest.raises(EpisodeError, match=f"HTTP {status}: scripted {status}") as caught:
            await ask(pool)
        assert caught.value.kind is kind


async def test_a_count_is_of_the_prompt_that_the_chat_has_however_long(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        strict = {**GREP, "function": {**GREP["function"], "strict": True}}
        assert await pool.count_tokens(episode="e1", messages=ASKED, tools=[strict]) == len(rendered(ASKED))
        assert engine.bodies("tokenize") == [{"model": "policy", "messages": ASKED, "tools": [GREP]}]
        assert not engine.bodies("render")
        engine.max_model_len = 3
        assert await pool.count_tokens(episode="e1", messages=ASKED, tools=[]) == len(rendered(ASKED))


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        (({"error": "oh"}, 500), ErrorKind.PROVIDER, "HTTP 500: oh"),
        (({"error": {"message": "roles must alternate"}}, 400), ErrorKind.INVALID_RESPONSE, "roles must alternate"),
        (({"count": 0}, 200), ErrorKind.INVALID_RESPONSE, "count: found 0, accepted is at least 1"),
        (({"tokens": [1]}, 200), ErrorKind.INVALID_RESPONSE, "cannot be read"),
    ],
)
async def test_a_count_that_the_engine_does_not_give_is_its_failure(running_pool, answer, kind, reason):
    body, status = answer
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        engine.answers["tokenize"] += [web.json_response(body, status=status) for _ in range(FRUITLESS)]
        with pytest.raises(EpisodeError, match=reason) as caught:
            await pool.count_tokens(episode="e1", messages=ASKED, tools=[])
        assert caught.value.kind is kind


async def test_chats_and_completions_of_an_episode_stick_to_one_engine(running_pool):
    async with FakeEngine() as first, FakeEngine() as second, running_pool(first, second) as harness:
        harness.pool.announce(policy(0))
        await harness.eventually(lambda: harness.pool.metrics_snapshot()["engines"] == 2)
        homes = {name: (await ask(harness.pool, episode=name)).generation.engine for name in ("a", "b")}
        assert len(set(homes.values())) == 2
        for name, home in homes.items():
            assert (await harness.generate(name)).engine == home
            assert (await ask(harness.pool, episode=name)).generation.engine == home


async def test_cancelling_a_chat_reaches_the_engine(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        engine.hold("generate")
        call = asyncio.create_task(ask(pool))
        await engine.until(lambda: len(engine.running) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await engine.until(lambda: engine.cancelled == ["generate"] and not engine.running)
