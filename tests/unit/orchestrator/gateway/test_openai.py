import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from echorl_core.config import SamplingConfig
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.gateway.dialects.openai import requested_sampling
from echorl_orchestrator.gateway.sampling import SamplingRefusedError
from echorl_orchestrator.gateway.sessions import DuplicateSessionError, UnknownSessionError
from echorl_testing.orchestrator.served_gateway import GREP_TOOL, ServedGateway, served_gateway
from echorl_testing.waiting import until

TOOLS: Any = [GREP_TOOL]
PROMPT: Any = [{"role": "user", "content": "port?"}]


def client_of(gateway: ServedGateway, key: str = "k", *, path: bool = True, **options: Any) -> openai.AsyncOpenAI:
    base = gateway.url(f"/s/{key}/v1" if path else "/v1")
    return openai.AsyncOpenAI(base_url=base, api_key=options.pop("api_key", "unused"), max_retries=0, **options)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[ServedGateway]:
    async with served_gateway(tmp_path) as served:
        yield served


async def test_a_tool_conversation_through_the_openai_client(gateway: ServedGateway) -> None:
    async with client_of(gateway) as client:
        first = await client.chat.completions.create(model="policy", messages=PROMPT, tools=TOOLS)
        choice = first.choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "look ")
        (call,) = choice.message.tool_calls or []
        assert (call.function.name, json.loads(call.function.arguments)) == ("grep", {"pattern": "port"})
        assert first.usage is not None
        assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (24, 17)
        talk = [
            *PROMPT,
            choice.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "etc/a"}]},
        ]
        second = await client.chat.completions.create(model="policy", messages=talk, tools=TOOLS)
    assert second.choices[0].message.content == "done"
    assert len(gateway.session.history.branches) == 1


async def test_a_stream_replays_the_finished_turn(gateway: ServedGateway) -> None:
    async with client_of(gateway) as client:
        stream = await client.chat.completions.create(
            model="policy", messages=PROMPT, tools=TOOLS, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "look "
    (call,) = [call for delta in deltas for call in delta.tool_calls or []]
    assert call.function is not None
    assert (call.index, call.function.name, call.function.arguments) == (0, "grep", '{"pattern": "port"}')
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 41


async def test_a_stream_ends_with_done(gateway: ServedGateway) -> None:
    url = gateway.url("/s/k/v1/chat/completions")
    async with aiohttp.ClientSession() as http, http.post(url, json={"messages": PROMPT, "stream": True}) as answer:
        assert answer.content_type == "text/event-stream"
        assert (await answer.text()).endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("options", [{"api_key": "k"}, {"default_headers": {"X-Session-ID": "k"}}])
async def test_the_session_may_come_as_bearer_or_header(gateway: ServedGateway, options: dict[str, Any]) -> None:
    async with client_of(gateway, path=False, **options) as client:
        await client.chat.completions.create(model="policy", messages=PROMPT)
    assert len(gateway.session.facts.turns) == 1


async def test_unknown_closed_and_duplicate_sessions(gateway: ServedGateway) -> None:
    async with client_of(gateway, "nobody") as client:
        with pytest.raises(openai.NotFoundError, match="no session nobody"):
            await client.chat.completions.create(model="policy", messages=PROMPT)
    await gateway.sessions.close("k")
    async with client_of(gateway) as client:
        with pytest.raises(openai.InternalServerError, match="session k is closed") as caught:
            await client.chat.completions.create(model="policy", messages=PROMPT)
    assert caught.value.status_code == 503
    assert gateway.policy.calls == []
    with pytest.raises(DuplicateSessionError):
        gateway.open("k")
    gateway.open("other")
    with pytest.raises(DuplicateSessionError):
        gateway.open("other")
    with pytest.raises(UnknownSessionError):
        gateway.sessions.get("nobody")


async def test_a_missing_session_key_is_401(gateway: ServedGateway) -> None:
    url = gateway.url("/v1/chat/completions")
    async with aiohttp.ClientSession() as http, http.post(url, json={"messages": PROMPT}) as answer:
        assert answer.status == 401


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("top_p", 0.9),
        ("presence_penalty", 0.5),
        ("frequency_penalty", 0.5),
        ("logit_bias", {"5": 1}),
        ("response_format", {"type": "json_object"}),
        ("tool_choice", "required"),
        ("n", 2),
        ("seed", 7),
        ("stop", ["x"]),
        ("logprobs", True),
    ],
)
async def test_fields_that_training_refuses_are_named(gateway: ServedGateway, field: str, value: Any) -> None:
    async with client_of(gateway) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="policy", messages=PROMPT, tools=TOOLS, **{field: value})
    assert caught.value.param == field
    assert field in str(caught.value)
    assert gateway.policy.calls == []


async def test_eval_sessions_may_be_greedy_but_not_seeded(gateway: ServedGateway) -> None:
    gateway.open("eval", evaluation=True)
    async with client_of(gateway, "eval") as client:
        await client.chat.completions.create(
            model="policy", messages=PROMPT, temperature=0, top_p=0.9, presence_penalty=0.5, extra_body={"top_k": 5}
        )
        with pytest.raises(openai.BadRequestError, match="accepted is a number from -2 to 2"):
            await client.chat.completions.create(model="policy", messages=PROMPT, frequency_penalty=3)
        with pytest.raises(openai.BadRequestError, match="seed"):
            await client.chat.completions.create(model="policy", messages=PROMPT, seed=1)
    assert gateway.policy.calls[0]["sampling"] == SamplingConfig(
        temperature=0.0, top_p=0.9, top_k=5, max_completion_tokens=64, presence_penalty=0.5
    )


async def test_unsaid_fields_are_the_environments(gateway: ServedGateway) -> None:
    gateway.open("warm", sampling=SamplingConfig(temperature=0.7, max_completion_tokens=9))
    async with client_of(gateway, "warm") as client:
        await client.chat.completions.create(model="policy", messages=PROMPT)
        await client.chat.completions.create(model="policy", messages=PROMPT, temperature=0.5, max_tokens=3)
    first, second = (call["sampling"] for call in gateway.policy.calls)
    assert (first.temperature, first.max_completion_tokens) == (0.7, 9)
    assert (second.temperature, second.max_completion_tokens) == (0.5, 3)


def test_unknown_fields_and_odd_values_are_refused() -> None:
    default = SamplingConfig()
    for body, problem in (
        ({"mirostat": 1}, "mirostat: unknown field"),
        ({"temperature": "hot"}, "temperature: found 'hot', accepted is a finite number"),
        ({"max_tokens": 0}, "max_tokens: found 0, accepted is an integer from 1"),
        ({"top_p": 0}, "top_p: found 0"),
    ):
        with pytest.raises(SamplingRefusedError, match=problem):
            requested_sampling(body, default, evaluation=True)


async def test_a_prompt_without_room_is_a_clear_400(gateway: ServedGateway) -> None:
    gateway.open("short", max_model_len=24)
    async with client_of(gateway, "short") as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="policy", messages=PROMPT)
    assert caught.value.code == "context_length_exceeded"
    # Some clients know it by these words alone.
    assert "beyond the model's context length: the prompt has" in caught.value.message
    assert gateway.policy.calls == []


async def test_an_engines_failure_is_503(gateway: ServedGateway) -> None:
    gateway.policy.errors.append(EpisodeError(ErrorKind.PROVIDER, "engine lost"))
    async with client_of(gateway) as client:
        with pytest.raises(openai.InternalServerError, match="engine lost"):
            await client.chat.completions.create(model="policy", messages=PROMPT)
    assert gateway.bugs == []


async def test_a_bug_is_not_swallowed(gateway: ServedGateway) -> None:
    gateway.reply = []  # type: ignore[assignment]
    async with client_of(gateway) as client:
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="policy", messages=PROMPT)
    assert [type(error) for error in gateway.bugs] == [IndexError]


async def test_hanging_up_aborts_the_generation(gateway: ServedGateway) -> None:
    gateway.policy.gate.clear()
    async with client_of(gateway) as client:
        call = asyncio.create_task(client.chat.completions.create(model="policy", messages=PROMPT))
        await asyncio.wait_for(gateway.policy.arrived.wait(), 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await until(lambda: bool(gateway.session.facts.aborted))
    assert gateway.policy.cancelled == 1
    assert gateway.session.history.branches == []


async def test_closing_a_session_answers_its_running_call(gateway: ServedGateway) -> None:
    gateway.policy.gate.clear()
    async with client_of(gateway) as client:
        call = asyncio.create_task(client.chat.completions.create(model="policy", messages=PROMPT))
        await asyncio.wait_for(gateway.policy.arrived.wait(), 60)
        await gateway.sessions.close("k")
        with pytest.raises(openai.InternalServerError, match="closed"):
            await asyncio.wait_for(call, 60)


async def test_large_bodies_are_taken(gateway: ServedGateway) -> None:
    gateway.open("large", max_model_len=4_000_000)
    body = io.BytesIO(json.dumps({"messages": PROMPT, "metadata": {"pad": "x" * 3_000_000}}).encode())
    url = gateway.url("/s/large/v1/chat/completions")
    async with aiohttp.ClientSession() as http, http.post(url, data=body) as answer:
        assert answer.status == 200, await answer.text()


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"messages": ' + b"[" * 100_000,
        b'{"messages": 1}',
        b'{"messages": []}',
        b'{"messages": [1], "tools": 3}',
        b'{"messages": [1], "tools": [{"function": {"name": "a\\ud83d"}}]}',
        b'{"messages": [{"role": "assistant", "tool_calls": 5}]}',
        b'{"messages": [{"role": "tool", "content": "", "tool_call_id": ["a"]}]}',
    ],
)
async def test_malformed_bodies_are_400(gateway: ServedGateway, body: bytes) -> None:
    url = gateway.url("/s/k/v1/chat/completions")
    async with aiohttp.ClientSession() as http, http.post(url, data=body) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["type"] == "invalid_request_error"
    assert gateway.bugs == []


async def test_text_that_utf8_cannot_hold_is_taken_with_a_mark_in_its_place(gateway: ServedGateway) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "sh", "arguments": '{"file": "\\ud83d"}'}}
    messages = [
        {"role": "user", "content": "a\udcff"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "b\udcff", "tool_call_id": "1"},
    ]
    url = gateway.url("/s/k/v1/chat/completions")
    body = json.dumps({"messages": messages}).encode()
    async with aiohttp.ClientSession() as http, http.post(url, data=body) as answer:
        assert answer.status == 200, await answer.text()
    said = gateway.session.history.branches[0].messages
    assert [one["content"] for one in said[:3]] == ["a\ufffd", "", "b\ufffd"]
    assert said[1]["tool_calls"][0]["function"]["arguments"] == {"file": "\ufffd"}
