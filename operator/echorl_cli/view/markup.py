"""Texts of a page as HTML. Models and environments chose them: everything is escaped."""

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from echorl_cli.records import Row

MOST_CHARACTERS = 20_000
"""Of one text; the rest is only counted."""
_ROLES = {"system", "user", "assistant", "tool", "developer"}
_DIFF = (("+++", "meta"), ("---", "meta"), ("diff ", "meta"), ("@@", "hunk"), ("+", "added"), ("-", "removed"))


def shortened(text: str) -> str:
    """The text, or its beginning and how much more there is."""
    more = len(text) - MOST_CHARACTERS
    return text if more <= 0 else f"{text[:MOST_CHARACTERS]}\n… {more:,} more characters"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in value):
        return "".join(part["text"] for part in value)
    return "" if value is None else json.dumps(value, indent=2, ensure_ascii=False)


def _block(kind: str, text: str) -> str:
    return f'<div class="{kind}">{escape(shortened(text))}</div>' if text else ""


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return _block("call", _text(call))
    name, arguments = escape(str(function.get("name"))), escape(shortened(_text(function.get("arguments"))))
    return f'<div class="call"><b>{name}</b> {arguments}</div>'


def message(one: Row) -> str:
    """One message: who said it, what was thought, said and called."""
    role = str(one.get("role") or "?")
    calls = one.get("tool_calls")
    parts = [
        f'<div class="role">{escape(role)}</div>',
        _block("thought", _text(one.get("reasoning_content"))),
        _block("said", _text(one.get("content"))),
        *(_call(call) for call in (calls if isinstance(calls, list) else [])),
    ]
    return f'<div class="message {role if role in _ROLES else "other"}">{"".join(parts)}</div>'


def conversation(messages: Sequence[Row]) -> str:
    """Messages in order."""
    return "".join(map(message, messages)) or '<p class="faint">No messages were recorded.</p>'


def transcript(lines: Sequence[Row]) -> str:
    """What members of a multi-agent episode said aloud."""
    return "".join(
        f'<div class="message other"><div class="role">{escape(str(one.get("member")))}'
        f" · slot {escape(str(one.get('slot')))}</div>{_block('said', _text(one.get('text')))}</div>"
        for one in lines
    )


def field(value: Any) -> str:
    """A field of an episode's ``info``: a diff in colours, a text as it is, anything else as JSON."""
    text = shortened(_text(value))
    if isinstance(value, str) and _is_diff(value):
        return f'<pre class="diff">{"".join(map(_diff_line, text.splitlines()))}</pre>'
    return f"<pre>{escape(text)}</pre>"


def _is_diff(text: str) -> bool:
    return text.startswith(("diff --git ", "--- ")) and "\n@@" in text


def _diff_line(line: str) -> str:
    kind = next((kind for start, kind in _DIFF if line.startswith(start)), "same")
    return f'<span class="{kind}">{escape(line)}\n</span>'
