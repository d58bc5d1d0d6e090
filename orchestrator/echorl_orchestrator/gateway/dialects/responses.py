"""OpenAI's Responses, plain and as server-sent events.

Nothing is stored: a request brings the whole conversation. As in every dialect of agents, the environment's sampling
holds, what cannot be done is refused by its field, and fields that are not known here are let pass.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from echorl_core.names import SERVED_MODEL_NAME
from echorl_orchestrator.chat.messages import MessageError, wire_message, with_one_system
from echorl_orchestrator.gateway.dialect import Dialect, Reason, Refusal, TurnRequest
from echorl_orchestrator.gateway.dialects import openai
from echorl_orchestrator.gateway.reading import an_object, function_tool, offered_tools
from echorl_orchestrator.gateway.sampling import SamplingRefusedError, pinned
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.turns import SessionSpec, Turn

_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text")
_ITEMS = ("message", "reasoning", "function_call", "function_call_output")
# What cannot be done; asking for nothing of it is accepted.
_REFUSED = {
    "previous_response_id": "responses are not stored; send the whole conversation as input",
    "conversation": "conversations are not stored; send the whole conversation as input",
    "prompt": "prompts are not stored; send instructions and input",
    "background": "not supported; leave it out",
    "top_logprobs": "not supported; leave it out",
}


class OpenAiResponses:
    """``POST /v1/responses``."""

    path = "/v1/responses"
    heartbeat = ": computing\n\n"
    in_stream = frozenset({Reason.PROMPT_TOO_LONG})

    def read(self, body: Any, spec: SessionSpec) -> TurnRequest:
        """See ``Dialect``."""
        if not isinstance(body, dict) or not isinstance(body.get("input"), str | list):
            raise MessageError("input: missing; accepted are text and a list of items")
        for field, problem in _REFUSED.items():
            if body.get(field):
                raise SamplingRefusedError(field, problem)
        if body.get("truncation") not in (None, "disabled"):
            raise SamplingRefusedError("truncation", f"found {body['truncation']!r}, accepted is 'disabled'")
        form = an_object(an_object(body.get("text") or {}, "text").get("format") or {}, "text.format")
        if form.get("type", "text") != "text":
            raise SamplingRefusedError("text.format", f"found {form['type']!r}, accepted is 'text'")
        sampling, asked = pinned(spec.sampling, body, "max_output_tokens")
        messages = [*_instructions(body.get("instructions")), *_messages(body["input"])]
        tools = offered_tools(body.get("tools"), body.get("tool_choice") or "auto", "tools[{}]", _tool)
        return TurnRequest(with_one_system(messages), tools, sampling, bool(body.get("stream")), asked)

    def answer(self, session: GatewaySession, turn: Turn) -> dict[str, Any]:
        """The turn as one response."""
        return _response(session, turn, _items(session, turn))

    def events(self, session: GatewaySession, turn: Turn, body: Mapping[str, Any]) -> str:
        """The turn as the events of one response, each item in one piece."""
        return _numbered(_events(session, turn))

    def refusal(self, refusal: Refusal) -> dict[str, Any]:
        """The error object of OpenAI's other API."""
        return openai.DIALECT.refusal(refusal)

    def failure(self, refusal: Refusal) -> str:
        """A response that failed; agents compact by its error's code."""
        error = {"code": refusal.reason or "server_error", "message": refusal.message}
        failed = {**_HEAD, "id": "resp_failed", "created_at": int(time.time()), "status": "failed", "error": error}
        return _numbered([{"type": "response.failed", "response": failed}])


DIALECT: Dialect = OpenAiResponses()

_HEAD: dict[str, Any] = {
    "object": "response",
    "status": "in_progress",
    "model": SERVED_MODEL_NAME,
    "output": [],
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "store": False,
    "tool_choice": "auto",
    "tools": [],
    "truncation": "disabled",
    "usage": None,
}
"""A response before it says anything."""


def _parts(parts: Any, where: str, accepted: Sequence[str]) -> list[str]:
    """The texts of a list of parts, each of an accepted type; text stands for one part."""
    if isinstance(parts, str):
        return [parts]
    if not isinstance(parts, list):
        raise MessageError(f"{where}: found {type(parts).__name__}, accepted are text and a list of parts")
    for index, part in enumerate(parts):
        kind = an_object(part, f"{where}[{index}]").get("type")
        if kind not in accepted or not isinstance(part.get("text"), str):
            raise MessageError(
                f"{where}[{index}]: not supported: parts of type {kind!r}; accepted: {', '.join(accepted)}, with text"
            )
    return [part["text"] for part in parts]


def _instructions(instructions: Any) -> list[dict[str, Any]]:
    if instructions is not None and not isinstance(instructions, str):
        raise MessageError(f"instructions: found {type(instructions).__name__}, accepted is text")
    return [{"role": "system", "content": instructions}] if instructions else []


def _messages(items: str | list[Any]) -> list[dict[str, Any]]:
    """The conversation. What the policy said in one turn comes as several items and is one message."""
    messages: list[dict[str, Any]] = []
    own: dict[str, Any] | None = None
    """What the policy says, as long as its items follow each other."""
    for index, item in enumerate([{"role": "user", "content": items}] if isinstance(items, str) else items):
        where = f"input[{index}]"
        kind = an_object(item, where).get("type") or "message"
        if kind not in _ITEMS:
            raise MessageError(f"{where}: not supported: items of type {kind!r}; accepted are {', '.join(_ITEMS)}")
        if kind == "message" and item.get("role") not in _ROLES:
            raise MessageError(f"{where}.role: found {item.get('role')!r}, accepted are {', '.join(_ROLES)}")
        if kind == "function_call_output":
            own = None
            text = "\n".join(_parts(item.get("output"), f"{where}.output", _TEXTS))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
        elif kind == "message" and item["role"] != "assistant":
            own = None
            role = "user" if item["role"] == "user" else "system"
            text = "\n".join(_parts(item.get("content"), f"{where}.content", _TEXTS))
            messages.append({"role": role, "content": text})
        else:
            if own is None:
                own = {"role": "assistant", "content": ""}
                messages.append(own)
            _say(own, item, kind, where)
    return messages


def _say(own: dict[str, Any], item: Mapping[str, Any], kind: str, where: str) -> None:
    """Add an item of the policy's to its message."""
    if kind == "message":
        own["content"] += "".join(_parts(item.get("content"), f"{where}.content", _TEXTS))
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
        own.setdefault("tool_calls", []).append({"id": item.get("call_id"), "function": function})
    else:
        # Agents send back what was meant for their servers and leave out what was meant for people.
        hidden = item.get("encrypted_content")
        thoughts = (
            [hidden] if isinstance(hidden, str) else _parts(item.get("content") or [], where, ("reasoning_text",))
        )
        own["reasoning_content"] = own.get("reasoning_content", "") + "".join(thoughts)


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if (kind := tool.get("type")) != "function":
        raise SamplingRefusedError(where, f"not supported: tools of type {kind!r}; accepted is 'function'; turn it off")
    return function_tool(tool.get("name"), tool.get("description"), tool.get("parameters"), where)


def _response(session: GatewaySession, turn: Turn, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    cut = turn.finish_reason == "length"
    usage = {
        "input_tokens": turn.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": turn.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": turn.prompt_tokens + turn.completion_tokens,
    }
    return {
        **_started(session, turn),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": items,
        "usage": usage,
    }


def _started(session: GatewaySession, turn: Turn) -> dict[str, Any]:
    return {**_HEAD, "id": f"resp_{session.spec.key}_{turn.number}", "created_at": int(time.time())}


def _items(session: GatewaySession, turn: Turn) -> list[dict[str, Any]]:
    message, name = wire_message(turn.message), f"{session.spec.key}_{turn.number}"
    calls = message.get("tool_calls", ())
    items: list[dict[str, Any]] = []
    if thinking := message.get("reasoning_content"):
        content = [{"type": "reasoning_text", "text": thinking}]
        items.append(
            {"id": f"rs_{name}", "type": "reasoning", "summary": [], "content": content, "encrypted_content": thinking}
        )
    text = message["content"] or ""
    # As in the Messages API: blank text beside calls is not sent back, and an empty turn has an item.
    if text.strip() or not calls:
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        item = {"id": f"msg_{name}", "type": "message", "role": "assistant", "content": [part]}
        items.append({**item, "status": "incomplete" if turn.finish_reason == "length" else "completed"})
    for number, call in enumerate(calls):
        function = {"type": "function_call", "call_id": call["id"], **call["function"], "status": "completed"}
        items.append({"id": f"fc_{name}_{number}", **function})
    return items


def _events(session: GatewaySession, turn: Turn) -> Iterator[dict[str, Any]]:
    begun, items = _started(session, turn), _items(session, turn)
    for kind in ("response.created", "response.in_progress"):
        yield {"type": kind, "response": begun}
    for index, item in enumerate(items):
        place = {"output_index": index, "item_id": item["id"]}
        field = "arguments" if item["type"] == "function_call" else "content"
        empty = {**item, field: "" if field == "arguments" else []}
        if item["type"] != "reasoning":
            empty["status"] = "in_progress"
        yield {"type": "response.output_item.added", "output_index": index, "item": empty}
        if field == "arguments":
            yield {"type": "response.function_call_arguments.delta", **place, "delta": item[field]}
            yield {
                "type": "response.function_call_arguments.done",
                **place,
                "arguments": item[field],
                "name": item["name"],
            }
        else:
            yield from _part(place, item["content"][0])
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    done = _response(session, turn, items)
    yield {"type": f"response.{done['status']}", "response": done}


def _part(place: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    where, text = {**place, "content_index": 0}, part["text"]
    logprobs: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
    yield {"type": "response.content_part.added", **where, "part": {**part, "text": ""}}
    yield {"type": f"response.{part['type']}.delta", **where, "delta": text, **logprobs}
    yield {"type": f"response.{part['type']}.done", **where, "text": text, **logprobs}
    yield {"type": "response.content_part.done", **where, "part": part}


def _numbered(events: Iterator[dict[str, Any]] | Sequence[dict[str, Any]]) -> str:
    numbered = ({**event, "sequence_number": number} for number, event in enumerate(events))
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n" for event in numbered)
