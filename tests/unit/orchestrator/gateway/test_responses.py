"""OpenAI's Responses: what requests mean, and the vendor's client against a real gateway."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from openai.types.responses import Response

from echorl_core.config import SamplingConfig
from echorl_orchestrator.chat.messages import MessageError
from echorl_orchestrator.codec.renderers_codec import RenderersCodec
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.gateway.dialect import TurnRequest
from echorl_orchestrator.gateway.dialects.responses import OpenAiResponses
from echorl_orchestrator.gateway.sampling import SamplingRefusedError
from echorl_orchestrator.gateway.turns import SessionSpec
from echorl_testing.orchestrator.served_gateway import PARAMETERS, THINKING_CALL, ServedGateway, served_gateway

TOOLS: Any = [{"type": "function", "name": "grep", "parameters": PARAMETERS, "strict": False}]
USER: Any = {"type": "message", "role": "user", "content": "port?"}
SPEC: Any = SessionSpec("k", "e", None, None, SamplingConfig(max_completion_tokens=64), 512)  # type: ignore[arg-type]


def read(items: Any = "port?", **fields: Any) -> TurnRequest:
    return OpenAiResponses().read({"input": items, **fields}, SPEC)


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def test_items_become_messages_and_what_was_said_in_one_turn_is_one() -> None:
    items = [
        {"role": "developer", "content": "carefully"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text} for text in "ab"]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        said("look "),
        {"type": "function_call", "call_id": "c1", "name": "grep", "arguments": '{"pattern": "port"}'},
        {"type": "function_call", "call_id": "c2", "name": "ls", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "etc/a"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "so"},
        said("done"),
        {"role": "system", "content": "hurry"},
    ]
    assert read(items, instructions="work").messages == [
        {"role": "system", "content": "work\ncarefully"},
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "look ",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "function": {"name": "grep", "arguments": '{"pattern": "port"}'}},
                {"id": "c2", "function": {"name": "ls", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "etc/a"},
        {"role": "tool", "tool_call_id": "c2", "content": "x"},
        {"role": "assistant", "content": "done", "reasoning_content": "so"},
        {"role": "user", "content": "<system-reminder>\nhurry\n</system-reminder>"},
    ]
    assert read("port?").messages == [{"role": "user", "content": "port?"}]


def test_the_environments_sampling_holds_and_what_was_asked_is_told() -> None:
    asked = read(temperature=0, top_p=0.5, max_output_tokens=9)
    assert asked.sampling == SamplingConfig(max_completion_tokens=9)
    assert asked.asked == {"temperature": 0, "top_p": 0.5, "max_output_tokens": 9}
    assert read(max_output_tokens=32_000).sampling == SPEC.sampling


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id: responses are not stored; send the whole"),
        ({"conversation": "conv_1"}, "conversation: conversations are not stored"),
        ({"background": True}, "background: not supported"),
        ({"truncation": "auto"}, "truncation: found 'auto', accepted is 'disabled'"),
        ({"text": {"format": {"type": "json_schema"}}}, r"text\.format: found 'json_schema', accepted is 'text'"),
        ({"tool_choice": "required"}, "tool_choice: found 'required', accepted are 'auto' and 'none'"),
        ({"tool_choice": {"type": "function", "name": "grep"}}, "tool_choice: found"),
        ({"tools": [{"type": "web_search"}]}, r"tools\[0\]: not supported: tools of type 'web_search'"),
        ({"max_output_tokens": 0.5}, "max_output_tokens: found 0.5, accepted is an integer from 1"),
        ({"temperature": "hot"}, "temperature: found 'hot'"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_field(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(SamplingRefusedError, match=problem):
        read(**fields)


def test_what_asks_for_nothing_or_is_new_is_let_pass() -> None:
    without = {"store": True, "include": ["reasoning.encrypted_content"], "text": {"verbosity": "low"}, "prompt": None}
    assert read(**without, reasoning={"effort": "high"}, prompt_cache_key="k", brand_new=1).asked == {}
    assert read(tools=TOOLS, tool_choice="none").tools == []


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        (5, "input: missing"),
        (["x"], r"input\[0\]: found str, accepted is an object"),
        ([{"type": "item_reference", "id": "x"}], r"input\[0\]: not supported: items of type 'item_reference'"),
        ([{"role": "robot", "content": "x"}], r"input\[0\]\.role: found 'robot', accepted are user"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
            r"input\[0\]\.content\[0\]: not supported: parts of type 'input_image'",
        ),
        ([{"role": "user", "content": 5}], r"input\[0\]\.content: found int"),
    ],
)
def test_unusable_items_are_named(items: Any, problem: str) -> None:
    with pytest.raises(MessageError, match=problem):
        read(items)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[ServedGateway]:
    async with served_gateway(tmp_path) as served:
        yield served


def client_of(gateway: ServedGateway, key: str = "k", **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=gateway.url("/v1"), api_key=key, **{"max_retries": 0, **options})


async def ask(client: openai.AsyncOpenAI, items: Any = "port?", **fields: Any) -> Response:
    wanted: dict[str, Any] = {"model": "gpt", "input": items, "tools": TOOLS, **fields}
    response: Response = await client.responses.create(**wanted)
    return response


async def streamed(client: openai.AsyncOpenAI, items: Any = "port?", **fields: Any) -> Response:
    wanted: dict[str, Any] = {"model": "gpt", "input": items, "tools": TOOLS, **fields}
    async with client.responses.stream(**wanted) as stream:
        seen = [event async for event in stream]
        # What the client put together from the pieces is what the last event says as a whole.
        final: Response = await stream.get_final_response()
    last: Any = seen[-1]
    whole = last.response
    assert [item.to_dict() for item in final.output] == [item.to_dict() for item in whole.output]
    return final


@pytest.mark.parametrize("say", [ask, streamed])
async def test_a_tool_conversation_through_the_openai_client(gateway: ServedGateway, say: Any) -> None:
    async with client_of(gateway) as client:
        first = await say(client)
        message, call = first.output
        assert (first.status, first.output_text) == ("completed", "look ")
        assert (call.name, json.loads(call.arguments)) == ("grep", {"pattern": "port"})
        assert (first.usage.input_tokens, first.usage.output_tokens) == (24, 17)
        items = [{"role": "user", "content": "port?"}, *(item.to_dict() for item in first.output)]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "etc/a"})
        second = await say(client, items)
    assert (message.status, second.output_text) == ("completed", "done")
    (branch,) = gateway.session.history.branches
    assert branch.ids.tolist() == gateway.policy.returned[1][0] + gateway.policy.returned[1][1].token_ids
    assert gateway.session.tool_names == ["grep"]


async def test_a_cut_turn_is_incomplete_and_the_wish_is_recorded(gateway: ServedGateway) -> None:
    gateway.reply = "a" * 50
    async with client_of(gateway) as client:
        cut = await ask(client, max_output_tokens=16, temperature=0.2)
    assert cut.incomplete_details is not None
    assert (cut.status, cut.incomplete_details.reason, cut.output_text) == ("incomplete", "max_output_tokens", "a" * 16)
    assert gateway.policy.calls[0]["sampling"] == SamplingConfig(max_completion_tokens=16)
    assert gateway.session.facts.asked == {0: {"temperature": 0.2, "max_output_tokens": 16}}


async def test_refusals_have_the_codes_and_statuses_that_agents_act_by(gateway: ServedGateway) -> None:
    gateway.open("short", max_model_len=24)
    async with client_of(gateway, "short") as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client)
        assert caught.value.code == "context_length_exceeded"
        # In a stream it is the end of one, as at the vendor's: agents compact by the error's code.
        stream = await client.responses.create(model="gpt", input="port?", stream=True)
        (event,) = [event async for event in stream]
    assert event.type == "response.failed"
    assert event.response.error is not None
    assert (event.response.status, event.response.error.code) == ("failed", "context_length_exceeded")
    async with client_of(gateway) as client:
        with pytest.raises(openai.BadRequestError, match="responses are not stored") as refused:
            await ask(client, previous_response_id="resp_1")
        assert (refused.value.param, refused.value.code) == ("previous_response_id", "unsupported_parameter")
        assert [model.id async for model in client.models.list()] == ["policy"]
    async with client_of(gateway, "nobody") as client:
        for call in (ask(client), client.models.list()):
            with pytest.raises(openai.NotFoundError, match="no session nobody"):
                await call
    assert gateway.policy.calls == []
    assert gateway.bugs == []


async def test_a_lost_engine_is_tried_again(gateway: ServedGateway) -> None:
    gateway.policy.errors.append(EpisodeError(ErrorKind.PROVIDER, "engine lost"))
    async with client_of(gateway, max_retries=1) as client:
        assert (await ask(client)).status == "completed"
    assert len(gateway.policy.calls) == 2


async def test_the_events_of_a_stream(gateway: ServedGateway) -> None:
    body, url = {"input": "port?", "tools": TOOLS, "stream": True}, gateway.url("/s/k/v1/responses")
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as answer:
        assert answer.content_type == "text/event-stream"
        lines = [event.split("\n") for event in (await answer.text()).strip().split("\n\n")]
    datas = [json.loads(data.removeprefix("data: ")) for _, data in lines]
    assert [name.removeprefix("event: ") for name, _ in lines] == [data["type"] for data in datas]
    assert [data["sequence_number"] for data in datas] == list(range(len(datas)))
    assert [data["type"].removeprefix("response.") for data in datas] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]


@pytest.mark.parametrize("say", [ask, streamed])
@pytest.mark.parametrize("kept", ["whole", "encrypted_content", "nothing"])
async def test_reasoning_is_an_item_of_its_own_whether_or_not_it_comes_back(
    gateway: ServedGateway, say: Any, kept: str
) -> None:
    session = gateway.open("thinks", codec=RenderersCodec(gateway.tokenizer, "qwen3"), max_model_len=4096)
    gateway.reply = THINKING_CALL
    async with client_of(gateway, "thinks") as client:
        reasoning, call = (await say(client)).output
        assert [part.text.strip() for part in reasoning.content] == ["hm"]
        echoed = reasoning.to_dict()
        if kept == "encrypted_content":
            del echoed["content"]
        said = [*([] if kept == "nothing" else [echoed]), call.to_dict()]
        await say(client, [USER, *said, {"type": "function_call_output", "call_id": call.call_id, "output": "etc/a"}])
    (branch,) = session.history.branches
    assert branch.ids.tolist() == gateway.policy.returned[1][0] + gateway.policy.returned[1][1].token_ids
    assert ("reasoning_content" in branch.messages[1]) is (kept != "nothing")
