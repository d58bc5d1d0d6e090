"""An endpoint's next message in a conversation, by plain chat completions: no token ids, no logprobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from echorl_core.config import SamplingConfig
from echorl_orchestrator.chat.messages import Message, Tool, wire_message
from echorl_orchestrator.endpoints.client import EndpointClient, EndpointError
from echorl_orchestrator.failures import ErrorKind

CHAT = "chat/completions"


class _Function(msgspec.Struct):
    name: str
    arguments: str = ""


class _Call(msgspec.Struct):
    function: _Function
    id: str | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


@dataclass(frozen=True)
class EndpointAnswer:
    """What an endpoint said."""

    message: dict[str, Any]
    """In OpenAI's form: role, content, and tool_calls or reasoning_content where there are any."""
    truncated: bool
    """It hit the token limit."""
    completion_tokens: int
    """Tokens as the endpoint counts them; 0 if it does not tell."""


def endpoint_chat_body(
    model: str, messages: Sequence[Message], tools: Sequence[Tool], sampling: SamplingConfig, max_tokens: int
) -> bytes:
    """A chat request for canonical ``messages``, of what every OpenAI-compatible server takes."""
    request: dict[str, Any] = {
        "model": model,
        "messages": [wire_message(message) for message in messages],
        "temperature": sampling.temperature,
        "max_completion_tokens": max_tokens,
    }
    if sampling.top_p != 1:
        request["top_p"] = sampling.top_p
    neutral = SamplingConfig()
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        if (penalty := getattr(sampling, name)) != getattr(neutral, name):
            request[name] = penalty
    if tools:
        request["tools"] = list(tools)
    return msgspec.json.encode(request)


def parse_endpoint_answer(raw: bytes, where: str) -> EndpointAnswer:
    """Read a chat completion; ``where``: names the endpoint in messages.

    Raises:
        TeacherError: INVALID_RESPONSE, it is no chat completion with one message.
    """
    try:
        answer = msgspec.json.decode(raw, type=_Answer)
    except msgspec.DecodeError as error:
        raise EndpointError(ErrorKind.INVALID_RESPONSE, f"{where}: no chat completion: {error}") from None
    if len(answer.choices) != 1:
        choices = f"found {len(answer.choices)} choices, accepted is 1"
        raise EndpointError(ErrorKind.INVALID_RESPONSE, f"{where}: {choices}")
    reply, reason = answer.choices[0].message, answer.choices[0].finish_reason
    if not reply.content and not reply.tool_calls:
        raise EndpointError(ErrorKind.INVALID_RESPONSE, f"{where}: an empty message, finish_reason {reason!r}")
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": call.id or "", "type": "function", "function": msgspec.to_builtins(call.function)}
            for call in reply.tool_calls
        ]
    reasoning = reply.reasoning_content if reply.reasoning_content is not None else reply.reasoning
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    tokens = answer.usage.completion_tokens if answer.usage is not None else 0
    return EndpointAnswer(message, reason == "length", tokens)


async def endpoint_says(
    endpoint: EndpointClient,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    sampling: SamplingConfig,
    *,
    max_tokens: int,
) -> EndpointAnswer:
    """The endpoint's next message.

    Raises:
        TeacherError: it refuses, cannot be reached, or answers with something else.
    """
    config = endpoint.config
    raw = await endpoint.post(CHAT, endpoint_chat_body(config.model, messages, tools, sampling, max_tokens))
    return parse_endpoint_answer(raw, endpoint.where)
