"""Canonical messages: one form of what callers send, and the key by which two messages count as the same."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from echorl_core.jsonsafe import encodable

Message = Mapping[str, Any]
"""An OpenAI chat message: role, content, and tool_calls, tool_call_id or name where they apply."""

Tool = Mapping[str, Any]
"""An OpenAI tool definition (``{"type": "function", "function": {...}}``)."""

ROLES = ("system", "user", "assistant", "tool")


class MessageError(ValueError):
    """A message that cannot be used; the text names the field."""


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return encodable(content)
    if not isinstance(content, Sequence):
        raise MessageError(f"{where}: found {type(content).__name__}, accepted are text and a list of text parts")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise MessageError(f"{where}: not supported yet: parts of type {kind!r}; accepted are text parts")
    return encodable("".join(part["text"] for part in content))


def _arguments(raw: Any, where: str) -> Any:
    if isinstance(raw, str):
        raw = encodable(raw)
        try:
            decoded = json.loads(raw) if raw else {}
        except (ValueError, RecursionError):
            return raw
        return _encodable(decoded) if isinstance(decoded, dict) else raw
    if not isinstance(raw, Mapping):
        raise MessageError(f"{where}: found {type(raw).__name__}, accepted are a JSON object or its text")
    return _encodable(dict(raw))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise MessageError(f"{where}: a tool call needs function.name")
    arguments = _arguments(function.get("arguments") or {}, f"{where}.function.arguments")
    return {
        "id": encodable(str(call.get("id") or "")),
        "type": "function",
        "function": {"name": encodable(function["name"]), "arguments": arguments},
    }


def canonical_message(message: Any, index: int) -> dict[str, Any]:
    """The message in the form that codecs take: string content, decoded arguments.

    Raises:
        MessageError: not an OpenAI chat message, or one with content that is not text.
    """
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise MessageError(f"{where}: found {type(message).__name__}, accepted is an object")
    role = "system" if message.get("role") == "developer" else message.get("role")
    if role not in ROLES:
        raise MessageError(f"{where}.role: found {message.get('role')!r}, accepted are {', '.join(ROLES)}")
    result: dict[str, Any] = {"role": role, "content": _text(message.get("content"), f"{where}.content")}
    calls = message.get("tool_calls") or []
    if role == "assistant" and calls:
        if not isinstance(calls, Sequence):
            raise MessageError(f"{where}.tool_calls: found {type(calls).__name__}, accepted is a list of calls")
        result["tool_calls"] = [_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)]
    if role == "assistant" and isinstance(message.get("reasoning_content"), str):
        result["reasoning_content"] = encodable(message["reasoning_content"])
    if role == "tool":
        for field in ("tool_call_id", "name"):
            if (value := message.get(field)) and not isinstance(value, str):
                raise MessageError(f"{where}.{field}: found {type(value).__name__}, accepted is text")
            result.update({field: encodable(value)} if value else {})
    return result


def with_one_system(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the system's at the beginning as one, and its later ones as reminders from the user.

    Chat templates take a system message at the beginning alone; agents of some APIs send it anywhere.
    """
    result: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] != "system":
            result.append(message)
        elif not result:
            result.append(dict(message))
        elif len(result) == 1 and result[0]["role"] == "system":
            result[0]["content"] += "\n" + message["content"]
        else:
            reminder = f"<system-reminder>\n{message['content']}\n</system-reminder>"
            result.append({"role": "user", "content": reminder})
    return result


def message_key(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """Equal for messages that say the same: role, content and calls; not ids, names of results, or reasoning.

    Harnesses drop reasoning, renumber calls and trim what surrounds the text when they send a turn back; the tokens of
    the history stay the engine's in any case.
    """
    calls, content = message.get("tool_calls"), message["content"]
    if message["role"] == "assistant":
        content = content.strip()
    if not calls:
        return (message["role"], content)
    functions = (call["function"] for call in calls)
    return (
        message["role"],
        content,
        *((function["name"], json.dumps(function["arguments"], sort_keys=True)) for function in functions),
    )


def name_results(messages: list[dict[str, Any]], start: int = 0) -> None:
    """Give each tool message from ``start`` on the name of the tool that its ``tool_call_id`` refers to.

    One that has a name keeps it.
    """
    if all(message["role"] != "tool" or "name" in message for message in messages[start:]):
        return
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        for call in message.get("tool_calls", ()):
            names[call["id"]] = call["function"]["name"]
        unnamed = index >= start and message["role"] == "tool" and "name" not in message
        if unnamed and (name := names.get(message.get("tool_call_id", ""))) is not None:
            message["name"] = name


def wire_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message in OpenAI's form: arguments as JSON text, null content beside calls without text."""
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    texts = [
        {**call, "function": {**call["function"], "arguments": _text_of(call["function"]["arguments"])}}
        for call in calls
    ]
    return {**message, "content": message["content"] or None, "tool_calls": texts}


def _text_of(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
