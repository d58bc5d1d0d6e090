"""Chat completions: what is sent, what comes back, and what is refused."""

import asyncio

import pytest
from aiohttp import web

from echorl_core.config import SamplingConfig
from echorl_orchestrator.codec.engine_rendering import PromptTooLongError
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


async def test_every_sampling_field_is_sent_and_no_seed(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        await ask(await ready(harness))
        ((_, sent),) = [call for call in engine.calls if call[0] == "chat"]
        assert sent["headers"]["X-Session-ID"] == "e1"
        assert sent["body"] == {
            "model": "policy",
            "messages": ASKED,
            "n": 1,
            "temperature": 0.7,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "max_completion_tokens": 100,
            "min_tokens": 0,
            "ignore_eos": False,
            "skip_special_tokens": False,
            "logprobs": True,
            "top_logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "include_reasoning": True,
            "parallel_tool_calls": True,
            "stream": False,
        }


async def test_tools_and_calls_travel_in_openais_form_without_a_grammar(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        strict = {**GREP, "function": {**GREP["function"], "strict": True}}
        result = {"role": "tool", "tool_call_id": "call_1", "name": "grep", "content": "etc/a"}
        await ask(pool, [*ASKED, {"role": "assistant", "content": "", "tool_calls": [CALL]}, result], [strict])
        (body,) = engine.bodies("chat")
        assert (body["tools"], body["tool_choice"]) == ([GREP], "auto")
        wire = {**CALL, "function": {"name": "grep", "arguments": '{"pattern": "port"}'}}
        assert body["messages"][1] == {"role": "assistant", "content": None, "tool_calls": [wire]}
        assert body["messages"][2] == result


@pytest.mark.parametrize(("max_tokens", "reason"), [(100, "stop"), (20, "length")])
async def test_calls_come_back_and_the_true_finish_reason(running_pool, max_tokens, reason):
    wire = {**CALL, "function": {"name": "grep", "arguments": '{"pattern": "port"}'}}
    async with FakeEngine() as engine, running_pool(engine) as harness:
        engine.reply = lambda _: {"content": None, "tool_calls": [wire], "reasoning": "hm"}
        answer = await ask(await ready(harness), tools=[GREP], max_tokens=max_tokens)
        said = {"role": "assistant", "content": None, "tool_calls": [wire], "reasoning_content": "hm"}
        assert answer.message == said
        assert answer.generation.finish_reason == reason


def answered(*, prompt_token_ids=(1, 2), **changes):
    good = {
        "index": 0,
        "message": {"role": "assistant", "content": "x"},
        "token_ids": [7, 8],
        "logprobs": {"content": [{"token": "token_id:7", "logprob": -1.0}, {"token": "token_id:8", "logprob": -2.0}]},
        "finish_reason": "length",
    }
    return {"choices": [{**good, **changes}], "prompt_token_ids": prompt_token_ids}


UNUSABLE = [
    (answered(prompt_token_ids=None), "prompt_token_ids: found none"),
    (answered(logprobs=None), "2 token ids and 0 logprobs"),
    (answered(token_ids=None), "0 token ids and 2 logprobs"),
    (answered(token_ids=[7]), "1 token ids and 2 logprobs"),
    (answered(token_ids=[7, 9]), "logprob of token 8 stands at token 9"),
    (answered(logprobs={"content": [{"token": "a", "logprob": -1.0}, {"token": "b"}]}), "position 1: logprob None"),
    (
        answered(logprobs={"content": [{"token": "a", "logprob": -9999.0}, {"token": "b", "logprob": -1.0}]}),
        "position 0: logprob -9999.0",
    ),
    (
        answered(logprobs={"content": [{"token": "a", "logprob": 3.5}, {"token": "b", "logprob": -1.0}]}),
        "position 0: logprob 3.5, accepted are finite numbers up to 0",
    ),
    (answered(finish_reason="repetition"), "finish_reason: found 'repetition'"),
    (answered(message={"tool_calls": [{"id": "a"}]}), "cannot be read"),
    ({"choices": []}, "choices: found 0"),
]


@pytest.mark.parametrize(("answer", "reason"), UNUSABLE)
async def test_unusable_answer_is_an_invalid_response(running_pool, answer, reason):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        engine.answers["chat"].append(web.json_response(answer))
        with pytest.raises(EpisodeError, match=reason) as caught:
            await ask(pool)
        assert caught.value.kind is ErrorKind.INVALID_RESPONSE


async def test_not_a_number_is_an_invalid_response(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        text = '{"choices": [{"message": {}, "token_ids": [7], "logprobs": {"content": [{"logprob": NaN}]}}]}'
        engine.answers["chat"].append(web.Response(text=text, content_type="application/json"))
        with pytest.raises(EpisodeError) as caught:
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
        engine.answers["chat"].append(web.json_response({"error": {"message": message}}, status=400))
        with pytest.raises(PromptTooLongError):
            await ask(pool)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(500, ErrorKind.PROVIDER), (409, ErrorKind.PROVIDER), (400, ErrorKind.INVALID_RESPONSE)],
)
async def test_error_status_has_a_kind_and_the_engines_words(running_pool, status, kind):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        engine.fail("chat", status)
        with pytest.raises(EpisodeError, match=f"HTTP {status}: scripted {status}") as caught:
            await ask(pool)
        assert caught.value.kind is kind


async def test_a_count_is_of_the_prompt_that_the_chat_has_however_long(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        strict = {**GREP, "function": {**GREP["function"], "strict": True}}
        assert await pool.count_tokens(episode="e1", messages=ASKED, tools=[strict]) == len(rendered(ASKED))
        assert engine.bodies("tokenize") == [{"model": "policy", "messages": ASKED, "tools": [GREP]}]
        assert not engine.bodies("chat")
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
        engine.answers["tokenize"].append(web.json_response(body, status=status))
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


async def test_chat_in_flight_outlives_an_update_and_carries_both_versions(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        gate = engine.hold("chat")
        call = asyncio.create_task(ask(pool))
        await engine.until(lambda: len(engine.running) == 1)
        pool.announce(policy(3))
        await pool.wait_served(3, 60)
        gate.set()
        generation = (await call).generation
        assert (generation.version_low, generation.version_high) == (2, 3)


async def test_cancelling_and_aborting_a_chat(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        engine.hold("chat")
        call = asyncio.create_task(ask(pool))
        await engine.until(lambda: len(engine.running) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await engine.until(lambda: engine.cancelled == ["chat"] and not engine.running)
        call = asyncio.create_task(ask(pool))
        await engine.until(lambda: len(engine.running) == 1)
        for aborted in engine.running:
            aborted.set()
        with pytest.raises(EpisodeError, match="aborted") as caught:
            await call
        assert caught.value.kind is ErrorKind.PROVIDER


async def test_answer_of_another_start_of_the_engine_is_not_used(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        pool = await ready(harness)
        gate = engine.hold("chat")
        call = asyncio.create_task(ask(pool))
        await engine.until(lambda: len(engine.running) == 1)
        engine.reboot()
        gate.set()
        with pytest.raises(EpisodeError) as caught:
            await call
        assert caught.value.kind is ErrorKind.PROVIDER
