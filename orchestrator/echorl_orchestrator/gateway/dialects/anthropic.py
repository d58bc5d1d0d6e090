"""Anthropic's Messages API, plain and as server-sent events, with its count of tokens.

The environment's sampling holds whatever a request says. What would change the meaning of an answer and cannot be
done (forced tools, structured output, stop sequences, tools of the API's servers) is refused by its field; fields that
are not known here are let pass, because agents bring new ones all the time. Cache marks, ids and signatures exist on
the wire alone.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from echorl_core.names import SERVED_MODEL_NAME
from echorl_orchestrator.chat.messages import MessageError, with_one_system
from echorl_orchestrator.gateway.dialect import Dialect, Reason, Refusal, TurnRequest
from echorl_orchestrator.gateway.reading import an_object, function_tool, offered_tools
from echorl_orchestrator.gateway.sampling import SamplingRefusedError, pinned
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.turns import SessionSpec, Turn

_BILLING = "x-anthropic-billing-header"
"""A block of the system prompt that Claude Code changes at every request; each would begin a conversation."""
_SIGNATURE = "echorl"
"""Thinking needs one; nobody checks it."""
_USER_ROLES = ("user", "ctx", "msg")
"""The latter two are newer agents' names for what they add themselves."""
_SAID = ("text", "thinking", "redacted_thinking", "tool_use")
"""Types of the assistant's blocks."""
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
# What cannot be done; asking for nothing of it is accepted.
_REFUSED = ("stop_sequences", "mcp_servers", "container", "output_format", "prefill")


class AnthropicMessages:
    """``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

    path = "/v1/messages"
    count_path = "/v1/messages/count_tokens"
    heartbeat = 'event: ping\ndata: {"type": "ping"}\n\n'
    in_stream: frozenset[Reason] = frozenset()

    def read(self, body: Any, spec: SessionSpec) -> TurnRequest:
        """See ``Dialect``."""
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            raise MessageError("messages: missing; accepted is a list of messages")
        for field in _REFUSED:
            if body.get(field):
                raise SamplingRefusedError(field, "not supported; leave it out")
        if (body.get("output_config") or {}) and an_object(body["output_config"], "output_config").get("format"):
            raise SamplingRefusedError("output_config.format", "not supported; leave it out")
        sampling, asked = pinned(spec.sampling, body, "max_tokens")
        messages = [*_system(body.get("system")), *_messages(body["messages"])]
        return TurnRequest(with_one_system(messages), _tools(body), sampling, bool(body.get("stream")), asked)

    def answer(self, session: GatewaySession, turn: Turn) -> dict[str, Any]:
        """The turn as one message."""
        stop = _STOP_REASONS[turn.finish_reason]
        return {**_head(session, turn), "content": _blocks(turn), "stop_reason": stop, "usage": _usage(turn)}

    def events(self, session: GatewaySession, turn: Turn, body: Mapping[str, Any]) -> str:
        """The turn as the events of one message, each block in one piece."""
        return "".join(_event(event) for event in _events(session, turn))

    def refusal(self, refusal: Refusal) -> dict[str, Any]:
        """An error object. Its type and its words are those that agents retry or compact by."""
        kind = _ERRORS.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error")
        if refusal.reason is Reason.ENGINE:
            kind = "overloaded_error"
        too_long = refusal.reason is Reason.PROMPT_TOO_LONG
        message = f"prompt is too long: {refusal.message}" if too_long else refusal.message
        return {"type": "error", "error": {"type": kind, "message": message}}

    def failure(self, refusal: Refusal) -> str:
        """The error object as an event."""
        return _event(self.refusal(refusal))

    def count(self, tokens: int) -> dict[str, Any]:
        """See ``CountsTokens``."""
        return {"input_tokens": tokens}


DIALECT: Dialect = AnthropicMessages()


def _content(content: Any, where: str, accepted: Sequence[str]) -> list[Mapping[str, Any]]:
    """Blocks, each of an accepted type; text stands for a block of text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise MessageError(f"{where}: found {type(content).__name__}, accepted are text and a list of blocks")
    for index, block in enumerate(content):
        kind = an_object(block, f"{where}.{index}").get("type")
        if kind not in accepted:
            raise MessageError(
                f"{where}.{index}: not supported: blocks of type {kind!r}; accepted are {', '.join(accepted)}"
            )
        if kind in ("text", "thinking") and not isinstance(block.get(kind), str):
            raise MessageError(f"{where}.{index}.{kind}: accepted is text")
    return content


def _text(content: Any, where: str) -> str:
    return "\n".join(block["text"] for block in _content(content, where, ("text",)))


def _system(system: Any) -> list[dict[str, Any]]:
    if system is None:
        return []
    blocks = _content(system, "system", ("text",))
    text = "\n".join(block["text"] for block in blocks if not block["text"].startswith(_BILLING))
    return [{"role": "system", "content": text}] if text else []


def _messages(messages: Sequence[Any]) -> Iterator[dict[str, Any]]:
    own: list[Mapping[str, Any]] | None = None
    """Blocks of the assistant's messages that follow each other: they are one turn."""
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        role, content = an_object(message, where).get("role"), message.get("content")
        if role == "assistant":
            if index == len(messages) - 1:
                raise MessageError(f"{where}: the conversation must end with a user message; prefill is not supported")
            own = [*(own or ()), *_content(content, f"{where}.content", _SAID)]
            continue
        if own is not None:
            yield _said(own)
            own = None
        if role in _USER_ROLES:
            yield from _asked(content, f"{where}.content")
        elif role == "system":
            yield {"role": "system", "content": _text(content, f"{where}.content")}
        else:
            accepted = ", ".join((*_USER_ROLES, "assistant", "system"))
            raise MessageError(f"{where}.role: found {role!r}, accepted are {accepted}")


def _asked(content: Any, where: str) -> Iterator[dict[str, Any]]:
    """A message of the user for each run of texts, and one for each result of a tool, in their order."""
    blocks = enumerate(_content(content, where, ("text", "tool_result")))
    for kind, run in groupby(blocks, key=lambda pair: pair[1]["type"]):
        if kind == "text":
            yield {"role": "user", "content": "\n".join(block["text"] for _, block in run)}
            continue
        for index, block in run:
            text = _text(block.get("content") or "", f"{where}.{index}.content")
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}


def _said(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _joined(blocks, "text")}
    if thinking := _joined(blocks, "thinking"):
        message["reasoning_content"] = thinking
    calls = [
        {"id": block.get("id"), "function": {"name": block.get("name"), "arguments": block.get("input") or {}}}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    return {**message, "tool_calls": calls} if calls else message


def _joined(blocks: Sequence[Mapping[str, Any]], kind: str) -> str:
    return "".join(block[kind] for block in blocks if block["type"] == kind)


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    choice = an_object(body.get("tool_choice") or {}, "tool_choice").get("type", "auto")
    return offered_tools(body.get("tools"), choice, "tools.{}", _tool)


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if (kind := tool.get("type") or "custom") != "custom":
        raise SamplingRefusedError(
            where, f"not supported: tools of type {kind!r}; accepted are tools with an input_schema; turn it off"
        )
    return function_tool(tool.get("name"), tool.get("description"), tool.get("input_schema"), where)


def _usage(turn: Turn) -> dict[str, int]:
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": turn.prompt_tokens, "output_tokens": turn.completion_tokens, **cached}


def _head(session: GatewaySession, turn: Turn) -> dict[str, Any]:
    """A message before it says anything."""
    return {
        "id": f"msg_{session.spec.key}_{turn.number}",
        "type": "message",
        "role": "assistant",
        "model": SERVED_MODEL_NAME,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**_usage(turn), "output_tokens": 0},
    }


def _blocks(turn: Turn) -> list[dict[str, Any]]:
    message = turn.message
    calls = [
        {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": call["function"]["arguments"]}
        for call in message.get("tool_calls", ())
    ]
    thinking, text = message.get("reasoning_content"), message["content"]
    # Agents do not send blank text back, so beside calls there is none; an empty turn has a block nevertheless.
    texts = [{"type": "text", "text": text}] if text.strip() or not calls else []
    thoughts = [{"type": "thinking", "thinking": thinking, "signature": _SIGNATURE}] if thinking else []
    return [*thoughts, *texts, *calls]


def _events(session: GatewaySession, turn: Turn) -> Iterator[dict[str, Any]]:
    yield {"type": "message_start", "message": _head(session, turn)}
    for index, block in enumerate(_blocks(turn)):
        kind = block["type"]
        if kind == "tool_use":
            empty: dict[str, Any] = {**block, "input": {}}
            whole = json.dumps(block["input"], ensure_ascii=False)
            deltas = [{"type": "input_json_delta", "partial_json": whole}]
        else:
            empty = {**block, kind: ""}
            deltas = [{"type": f"{kind}_delta", kind: block[kind]}]
        if kind == "thinking":
            empty["signature"] = ""
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop = {"stop_reason": _STOP_REASONS[turn.finish_reason], "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": _usage(turn)}
    yield {"type": "message_stop"}


def _event(event: Mapping[str, Any]) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"
