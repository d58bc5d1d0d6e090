"""Chat completions in vLLM's shapes, for models whose messages the engine renders: what is sent, and what can be used.

The answer has the prompt's ids (``return_token_ids``), the sampled ids with their logprobs, and the message that the
engine's parsers made of them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from echorl_core import names
from echorl_core.config import SamplingConfig
from echorl_orchestrator.chat.messages import Message, Tool, wire_message
from echorl_orchestrator.codec.engine_rendering import PromptTooLongError
from echorl_orchestrator.engines.admin import message_of
from echorl_orchestrator.engines.answers import Entry, Sampled, decode, invalid, only, usable
from echorl_orchestrator.engines.client import Answer

CHAT = "/v1/chat/completions"
TOKENIZE = "/tokenize"

# The last one: vLLM cuts max_completion_tokens to the room that is left, and then refuses a room of 0.
_TOO_LONG = re.compile(r"maximum context length|maximum model length|max_tokens must be at least 1")
_TOKEN_ID = "token_id:"  # noqa: S105 - vLLM's prefix of ids in place of a token's text


class _Entry(msgspec.Struct):
    token: str = ""
    logprob: float | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Entry] | None = None


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
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _ChatAnswer(msgspec.Struct):
    choices: list[_Choice]
    prompt_token_ids: list[int] | None = None


class _TokenizeAnswer(msgspec.Struct):
    count: int


@dataclass(frozen=True)
class Said:
    """The usable part of a chat completion."""

    prompt_ids: list[int]
    sampled: Sampled
    message: dict[str, Any]
    """In OpenAI's form: role, content, and tool_calls or reasoning_content where there are any."""


def chat_body(
    *, messages: Sequence[Message], tools: Sequence[Tool], sampling: SamplingConfig, max_tokens: int
) -> bytes:
    """A chat request for canonical ``messages``, with every sampling field set and no seed, as ``generate_body``.

    Special tokens stay in the text, so that the message says what the ids say; the stop token is no part of it.
    """
    request: dict[str, Any] = {
        **_conversation(messages, tools),
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or 0,
        "min_p": 0.0,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "max_completion_tokens": max_tokens,
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
    if tools:
        request["tool_choice"] = "auto"
    return msgspec.json.encode(request)


def tokenize_body(messages: Sequence[Message], tools: Sequence[Tool]) -> bytes:
    """A request for the prompt that ``chat_body`` of the same would have, however long it is."""
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


def parse_chat(raw: bytes, max_tokens: int) -> Said:
    """Read a chat answer to a request for at most ``max_tokens`` tokens.

    Raises:
        EpisodeError: INVALID_RESPONSE when the prompt's ids, the sampled ids or their logprobs are missing or
            misaligned; PROVIDER when the engine aborted the request.
        ImpossibleLogprobError: a logprob is not finite, or above 0.
    """
    answer = decode(raw, _ChatAnswer)
    choice = only(answer.choices)
    reason = choice.finish_reason
    if reason == "tool_calls":
        # This reason hides the true one, which is the token limit for a completion that is as long as it.
        reason = "length" if len(choice.token_ids or ()) >= max_tokens else "stop"
    content = choice.logprobs.content if choice.logprobs is not None else None
    entries = None if content is None else [Entry(entry.logprob, _id_of(entry.token)) for entry in content]
    sampled = usable(choice.token_ids, entries, reason)
    if not answer.prompt_token_ids:
        raise invalid("prompt_token_ids: found none, accepted is at least 1")
    return Said(answer.prompt_token_ids, sampled, _openai_message(choice.message))


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


def _id_of(token: str) -> int | None:
    number = token.removeprefix(_TOKEN_ID)
    return int(number) if number != token and number.isdecimal() else None


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
