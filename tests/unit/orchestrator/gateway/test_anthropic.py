"""Anthropic's Messages API: what requests mean, and the vendor's client against a real gateway."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import pytest

from echorl_core.config import SamplingConfig
from echorl_orchestrator.chat.messages import MessageError
from echorl_orchestrator.codec.renderers_codec import RenderersCodec
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.gateway.dialect import TurnRequest
from echorl_orchestrator.gateway.dialects.anthropic import AnthropicMessages
from echorl_orchestrator.gateway.sampling import SamplingRefusedError
from echorl_orchestrator.gateway.turns import SessionSpec
from echorl_testing.orchestrator.served_gateway import PARAMETERS, THINKING_CALL, ServedGateway, served_gateway

TOOLS: Any = [{"name": "grep", "input_schema": PARAMETERS, "cache_control": {"type": "ephemeral"}}]
PROMPT: Any = [{"role": "user", "content": "port?"}]
SPEC: Any = SessionSpec("k", "e", None, None, SamplingConfig(max_completion_tokens=64), 512)  # type: ignore[arg-type]


def read(messages: Any = PROMPT, **fields: Any) -> TurnRequest:
    return AnthropicMessages().read({"messages": messages, **fields}, SPEC)


def text(said: str, **marks: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **marks}


def test_the_systems_blocks_are_one_message_and_later_ones_reminders() -> None:
    asked = [{"role": "user", "content": "a"}, {"role": "system", "content": [text("b"), text("c")]}, *PROMPT]
    system = [text("x-anthropic-billing-header: cc_version=1; cch=5f3;"), text("work"), text("well")]
    assert read(asked, system=system).messages == [
        {"role": "system", "content": "work\nwell"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": "<system-reminder>\nb\nc\n</system-reminder>"},
        *PROMPT,
    ]
    assert read([{"role": "system", "content": "too"}, *PROMPT], system="work").messages == [
        {"role": "system", "content": "work\ntoo"},
        *PROMPT,
    ]


@pytest.mark.parametrize("split", [0, 4])
def test_blocks_become_messages_in_their_order(split: int) -> None:
    said = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "?"},
        text("loo"),
        text("k "),
        {"type": "tool_use", "id": "t1", "name": "grep", "input": {"pattern": "port"}},
        {"type": "tool_use", "id": "t2", "name": "ls", "input": {}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [text("etc/a"), text("etc/b")], "is_error": False},
        {"type": "tool_result", "tool_use_id": "t2"},
        text("go"),
        text("on"),
    ]
    # Agents send the blocks of one turn as one message or as several.
    own = [{"role": "assistant", "content": blocks} for blocks in (said[:split], said[split:]) if blocks]
    talk = [{"role": "ctx", "content": "here"}, *own]
    assert read([*talk, {"role": "user", "content": results}]).messages == [
        {"role": "user", "content": "here"},
        {
            "role": "assistant",
            "content": "look ",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "t1", "function": {"name": "grep", "arguments": {"pattern": "port"}}},
                {"id": "t2", "function": {"name": "ls", "arguments": {}}},
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "etc/a\netc/b"},
        {"role": "tool", "tool_call_id": "t2", "content": ""},
        {"role": "user", "content": "go\non"},
    ]


def test_cache_marks_change_nothing_and_a_tools_own_field_of_that_name_stays() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    call = {"type": "tool_use", "id": "t", "name": "grep", "input": {"cache_control": "1"}}
    marked = [
        {"role": "user", "content": [text("a", **mark)]},
        {"role": "assistant", "content": [{**call, **mark}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": [text("b", **mark)], **mark}],
        },
    ]
    plain = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "b"}]},
    ]
    left = read(marked, system=[text("s", **mark)], tools=[{**TOOLS[0], **mark}])
    right = read(plain, system="s", tools=[{"name": "grep", "input_schema": PARAMETERS}])
    assert (left.messages, left.tools) == (right.messages, right.tools)
    assert left.messages[2]["tool_calls"][0]["function"]["arguments"] == {"cache_control": "1"}


def test_the_environments_sampling_holds_and_what_was_asked_is_told() -> None:
    asked = read(temperature=0, top_p=0.5, top_k=3, max_tokens=32_000)
    assert asked.sampling == SPEC.sampling
    assert asked.asked == {"temperature": 0, "top_p": 0.5, "top_k": 3, "max_tokens": 32_000}
    fewer = read(max_tokens=5)
    assert fewer.sampling.max_completion_tokens == 5
    assert read().asked == {}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"temperature": "hot"}, "temperature: found 'hot'"),
        ({"temperature": float("nan")}, "temperature: found nan"),
        ({"max_tokens": 0}, "max_tokens: found 0, accepted is an integer from 1"),
        ({"max_tokens": True}, "max_tokens: found True"),
        ({"stop_sequences": ["x"]}, "stop_sequences: not supported"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format: not supported"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: found 'any', accepted are 'auto' and 'none'"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "w"}]},
            "tools.0: not supported: tools of type 'web_search",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_field(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(SamplingRefusedError, match=problem):
        read(**fields)


def test_what_asks_for_nothing_or_is_new_is_let_pass() -> None:
    without = {"stop_sequences": [], "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}
    assert read(**without, context_management={"edits": []}, metadata={"user_id": "u"}, speed="fast").asked == {}
    assert read(tools=TOOLS, tool_choice={"type": "none"}).tools == []
    assert read(tools=[{"name": "now"}]).tools[0]["function"]["parameters"] == {"type": "object"}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "robot", "content": "x"}, r"messages.0.role: found 'robot', accepted are user"),
        ({"role": "user", "content": [{"type": "image", "source": {}}]}, r"messages.0.content.0: .*'image'"),
        (
            {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]},
            r"messages.0.content.0.content.0: not supported: blocks of type 'image'; accepted are text",
        ),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages.0.content.0.text: accepted is text"),
        ({"role": "user", "content": 5}, "messages.0.content: found int"),
        ("x", "messages.0: found str, accepted is an object"),
        ({"role": "assistant", "content": "The answer is ("}, "prefill is not supported"),
    ],
)
def test_unusable_messages_are_named(message: Any, problem: str) -> None:
    with pytest.raises(MessageError, match=problem):
        read([message])


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[ServedGateway]:
    async with served_gateway(tmp_path) as served:
        yield served


def client_of(
    gateway: ServedGateway, key: str = "k", *, path: bool = False, **options: Any
) -> anthropic.AsyncAnthropic:
    base = gateway.url(f"/s/{key}" if path else "")
    return anthropic.AsyncAnthropic(base_url=base, **{"api_key": key, "max_retries": 0, **options})


async def ask(client: anthropic.AsyncAnthropic, messages: Any = PROMPT, **fields: Any) -> anthropic.types.Message:
    wanted: dict[str, Any] = {"model": "claude", "max_tokens": 4096, "messages": messages, "tools": TOOLS, **fields}
    message: anthropic.types.Message = await client.messages.create(**wanted)
    return message


async def streamed(client: anthropic.AsyncAnthropic, messages: Any = PROMPT, **fields: Any) -> anthropic.types.Message:
    wanted: dict[str, Any] = {"model": "claude", "max_tokens": 4096, "messages": messages, "tools": TOOLS, **fields}
    async with client.messages.stream(**wanted) as stream:
        return await stream.get_final_message()


@pytest.mark.parametrize("say", [ask, streamed])
async def test_a_tool_conversation_through_the_anthropic_client(gateway: ServedGateway, say: Any) -> None:
    async with client_of(gateway) as client:
        first = await say(client)
        spoken, call = first.content
        assert (first.stop_reason, spoken.text, call.name, call.input) == (
            "tool_use",
            "look ",
            "grep",
            {"pattern": "port"},
        )
        assert (first.usage.input_tokens, first.usage.output_tokens) == (24, 17)
        # As agents do: without the blank at the end, and with a cache mark that moved.
        echoed = [{"type": "text", "text": "look"}, call.model_dump(exclude_none=True)]
        result = {
            "type": "tool_result",
            "tool_use_id": call.id,
            "content": "etc/a",
            "cache_control": {"type": "ephemeral"},
        }
        talk = [*PROMPT, {"role": "assistant", "content": echoed}, {"role": "user", "content": [result]}]
        second = await say(client, talk)
    assert (second.stop_reason, second.content[0].text) == ("end_turn", "done")
    (branch,) = gateway.session.history.branches
    assert branch.ids.tolist() == gateway.policy.returned[1][0] + gateway.policy.returned[1][1].token_ids
    assert gateway.session.tool_names == ["grep"]


@pytest.mark.parametrize("say", [ask, streamed])
async def test_blank_text_beside_a_call_is_not_sent_and_not_missed(gateway: ServedGateway, say: Any) -> None:
    gateway.reply = "\n\n<tool_call>grep port</tool_call><|im_end|>"
    async with client_of(gateway) as client:
        first = await say(client)
        (call,) = first.content
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "etc/a"}
        echoed = {"role": "assistant", "content": [call.model_dump(exclude_none=True)]}
        await say(client, [*PROMPT, echoed, {"role": "user", "content": [result]}])
    assert len(gateway.session.history.branches) == 1


@pytest.mark.parametrize("say", [ask, streamed])
async def test_a_cut_turn_and_an_empty_one(gateway: ServedGateway, say: Any) -> None:
    async with client_of(gateway) as client:
        gateway.reply = "a" * 50
        cut = await say(client, max_tokens=7)
        assert (cut.stop_reason, cut.content[0].text, cut.usage.output_tokens) == ("max_tokens", "a" * 7, 7)
        gateway.reply = "<|im_end|>"
        empty = await say(client)
        assert (empty.stop_reason, [block.type for block in empty.content]) == ("end_turn", ["text"])


async def test_pinned_sampling_is_sent_and_the_wish_is_recorded(gateway: ServedGateway) -> None:
    async with client_of(gateway) as client:
        await ask(client, extra_body={"temperature": 0.2, "top_k": 7})
    assert gateway.policy.calls[0]["sampling"] == SamplingConfig(max_completion_tokens=64)
    assert gateway.session.facts.asked == {0: {"temperature": 0.2, "top_k": 7, "max_tokens": 4096}}


@pytest.mark.parametrize(
    ("options", "path"),
    [({}, False), ({"api_key": None, "auth_token": "k"}, False), ({"api_key": "placeholder"}, True)],
)
async def test_the_session_comes_as_key_bearer_or_path(
    gateway: ServedGateway, options: dict[str, Any], path: bool
) -> None:
    async with client_of(gateway, path=path, **options) as client:
        await ask(client)
    assert len(gateway.session.facts.turns) == 1


async def test_counted_tokens_are_those_that_the_turn_will_have(gateway: ServedGateway) -> None:
    async with client_of(gateway) as client:
        first = await ask(client)
        talk = [*PROMPT, {"role": "assistant", "content": first.to_dict()["content"]}, *PROMPT]
        counted = await client.messages.count_tokens(model="claude", messages=talk, tools=TOOLS)
        assert len(gateway.policy.calls) == 1
        assert counted.input_tokens == (await ask(client, talk)).usage.input_tokens


async def test_models_and_the_look_before_the_first_call(gateway: ServedGateway) -> None:
    async with client_of(gateway) as client:
        assert [model.id async for model in client.models.list()] == ["policy"]
    async with client_of(gateway, "nobody") as client:
        with pytest.raises(anthropic.NotFoundError, match="no session nobody"):
            await client.models.list()
    async with aiohttp.ClientSession() as http, http.head(gateway.url("/")) as answer:
        assert (answer.status, await answer.read()) == (200, b"")


@pytest.mark.parametrize("say", [ask, streamed])
async def test_refusals_have_the_words_and_statuses_that_agents_act_by(gateway: ServedGateway, say: Any) -> None:
    gateway.open("short", max_model_len=24)
    gateway.open("over", max_turns=0)
    for key, kind, error, words in (
        ("short", anthropic.BadRequestError, "invalid_request_error", "prompt is too long: "),
        ("over", anthropic.BadRequestError, "invalid_request_error", "maxTurns"),
        ("nobody", anthropic.NotFoundError, "not_found_error", "no session nobody"),
    ):
        async with client_of(gateway, key) as client:
            with pytest.raises(kind) as caught:
                await say(client)
        body: Any = caught.value.body
        assert (body["type"], body["error"]["type"]) == ("error", error)
        assert words in body["error"]["message"]
    async with aiohttp.ClientSession() as http, http.post(gateway.url("/v1/messages"), json={}) as answer:
        assert (answer.status, (await answer.json())["error"]["type"]) == (401, "authentication_error")
    assert gateway.policy.calls == []
    assert gateway.bugs == []


async def test_a_lost_engine_is_tried_again_and_a_closed_session_is_not(gateway: ServedGateway) -> None:
    gateway.policy.errors.append(EpisodeError(ErrorKind.PROVIDER, "engine lost"))
    async with client_of(gateway, max_retries=1) as client:
        assert (await ask(client)).stop_reason == "tool_use"
    assert len(gateway.policy.calls) == 2
    await gateway.sessions.close("k")
    url = gateway.url("/v1/messages")
    async with aiohttp.ClientSession(headers={"X-Api-Key": "k"}) as http, http.post(url, json={}) as answer:
        assert (answer.status, answer.headers["x-should-retry"]) == (503, "false")


async def test_the_events_of_a_stream(gateway: ServedGateway) -> None:
    body = {"messages": PROMPT, "tools": TOOLS, "stream": True}
    url = gateway.url("/v1/messages?beta=true")
    async with aiohttp.ClientSession(headers={"X-Api-Key": "k"}) as http, http.post(url, json=body) as answer:
        assert answer.content_type == "text/event-stream"
        said = [line.split("\n") for line in (await answer.text()).strip().split("\n\n")]
    datas = [json.loads(data.removeprefix("data: ")) for _, data in said]
    assert [name.removeprefix("event: ") for name, _ in said] == [data["type"] for data in datas]
    assert [data["type"] for data in datas] == [
        "message_start",
        *("content_block_start", "content_block_delta", "content_block_stop") * 2,
        "message_delta",
        "message_stop",
    ]
    start, end = datas[0]["message"], datas[-2]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    assert (end["delta"]["stop_reason"], end["usage"]["output_tokens"]) == ("tool_use", 17)


@pytest.mark.parametrize("say", [ask, streamed])
@pytest.mark.parametrize("kept", [True, False])
async def test_thinking_is_a_block_of_its_own_whether_or_not_it_comes_back(
    gateway: ServedGateway, say: Any, kept: bool
) -> None:
    session = gateway.open("thinks", codec=RenderersCodec(gateway.tokenizer, "qwen3"), max_model_len=4096)
    gateway.reply = THINKING_CALL
    async with client_of(gateway, "thinks") as client:
        thinking, call = (await say(client)).content
        assert (thinking.type, thinking.thinking.strip(), bool(thinking.signature)) == ("thinking", "hm", True)
        echoed = [block.to_dict() for block in ([thinking] if kept else []) + [call]]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "etc/a"}
        await say(client, [*PROMPT, {"role": "assistant", "content": echoed}, {"role": "user", "content": [result]}])
    (branch,) = session.history.branches
    assert branch.ids.tolist() == gateway.policy.returned[1][0] + gateway.policy.returned[1][1].token_ids
