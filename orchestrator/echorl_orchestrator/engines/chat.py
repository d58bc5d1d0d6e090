"""Chats of models whose messages the engine renders, in vLLM 0.32's shapes: what is sent, and what can be used.

    messages --RENDER--> ids of the prompt --a turn like any other--> sampled ids --DERENDER--> the message they say

The first and the last step need no weights and keep nothing, so any engine may take them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from echorl_core import names
from echorl_orchestrator.chat.messages import Message, Tool, wire_message
from echorl_orchestrator.codec.engine_rendering import PromptTooLongError
from echorl_orchestrator.engines.admin import message_of
from echorl_orchestrator.engines.answers import decode, invalid, only
from echorl_orchestrator.engines.client import Answer
from echorl_orchestrator.engines.generation import Generation

RENDER = "/v1/chat/completions/render"
DERENDER = "/v1/chat/completions/derender"
TOKENIZE = "/tokenize"

# The last one: vLLM cuts max_completion_tokens to the room that is left, and then refuses a room of 0.
_TOO_LONG = re.compile(r"maximum context length|maximum model length|max_tokens must be at least 1")


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    function: _Function
    id: str | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _DerenderAnswer(msgspec.Struct):
    choices: list[_Choice]


class _Params(msgspec.Struct):
    # vLLM leaves out what is its default.
    max_tokens: int = 16
    stop_token_ids: list[int] | None = None


class _RenderAnswer(msgspec.Struct):
    token_ids: list[int]
    sampling_params: _Params


class _TokenizeAnswer(msgspec.Struct):
    count: int


@dataclass(frozen=True)
class RenderedChat:
    """A chat as the engine renders it."""

    prompt_ids: list[int]
    max_tokens: int
    """What was asked for, or the room that is left."""
    stop_ids: list[int]


def chat_request(*, messages: Sequence[Message], tools: Sequence[Tool], max_tokens: int) -> dict[str, Any]:
    """A request to render canonical ``messages``.

    Special tokens stay in the text, so that the message says what the ids say. How it is sampled is not asked here.
    """
    request: dict[str, Any] = {
        **_conversation(messages, tools),
        "max_completion_tokens": max_tokens,
        "skip_special_tokens": False,
        "include_reasoning": True,
        "parallel_tool_calls": True,
    }
    if tools:
        request["tool_choice"] = "auto"
    return request


def render_body(request: dict[str, Any]) -> bytes:
    """The request for a prompt's ids."""
    return msgspec.json.encode(request)


def derender_body(request: dict[str, Any], prompt_ids: list[int], generation: Generation) -> bytes | None:
    """The request for the message that sampled ids say in the chat of ``request``; None: they say nothing.

    The stop token is no part of the text, as in vLLM's own chats.
    """
    ids = generation.token_ids[:-1] if generation.finish_reason == "stop" else generation.token_ids
    if not ids:
        return None
    choice = {"index": 0, "token_ids": ids, "finish_reason": generation.finish_reason}
    response = {"request_id": "turn", "choices": [choice], "prompt_token_ids": prompt_ids}
    return msgspec.json.encode(
        {"model": names.SERVED_MODEL_NAME, "generate_response": response, "chat_request": request}
    )


def tokenize_body(messages: Sequence[Message], tools: Sequence[Tool]) -> bytes:
    """A request for the length of the prompt that such a chat has, however long it is."""
    return msgspec.json.encode(_conversation(messages, tools))


def parse_count(raw: bytes) -> int:
    """The number of tokens in an answer to ``tokenize_body``.

    Raises:
        EpisodeError: INVALID_RESPONSE when there is none.
    """
    count = decode(raw, _TokenizeAnswer).count
    if count < 1:
        raise invalid(f"count: found {count}, accepted is at least 1")
    return count


def parse_rendered(raw: bytes) -> RenderedChat:
    """Read the answer to ``render_body``.

    Raises:
        EpisodeError: INVALID_RESPONSE when there are no ids, or no room is told.
    """
    answer = decode(raw, _RenderAnswer)
    if not answer.token_ids:
        raise invalid("token_ids of the prompt: found none, accepted is at least 1")
    params = answer.sampling_params
    if params.max_tokens < 1:
        raise invalid(f"max_tokens: found {params.max_tokens}, accepted is at least 1")
    return RenderedChat(answer.token_ids, params.max_tokens, params.stop_token_ids or [])


def parse_message(raw: bytes) -> dict[str, Any]:
    """The message in an answer to ``derender_body``, in OpenAI's form; also ``reasoning_content`` where there is any.

    Raises:
        EpisodeError: INVALID_RESPONSE when there is none.
    """
    return _openai_message(only(decode(raw, _DerenderAnswer).choices).message)


def check_prompt_fits(answer: Answer) -> None:
    """Raise PromptTooLongError if the engine refused the request because the prompt leaves no room."""
    if answer.status == 400 and _TOO_LONG.search(message := message_of(answer.body)):
        raise PromptTooLongError(message)


def _conversation(messages: Sequence[Message], tools: Sequence[Tool]) -> dict[str, Any]:
    """What the engine renders a prompt from."""
    request: dict[str, Any] = {
        "model": names.SERVED_MODEL_NAME,
        "messages": [wire_message(message) for message in messages],
    }
    return {**request, "tools": [_unconstrained(tool) for tool in tools]} if tools else request


def _unconstrained(tool: Tool) -> dict[str, Any]:
    """The tool without ``strict``, which would have vLLM mask the policy's distribution by a grammar."""
    function = tool.get("function", tool)
    return {"type": "function", "function": {key: value for key, value in function.items() if key != "strict"}}


def _openai_message(message: _Message) -> dict[str, Any]:
    result: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        result["tool_calls"] = [
            {"id": call.id or "", "type": "function", "function": msgspec.to_builtins(call.function)}
            for call in message.tool_calls
        ]
    if message.reasoning is not None:
        result["reasoning_content"] = message.reasoning
    return result
