"""JSON without NaN or Infinity: non-finite numbers become null and are counted."""

import json
import math
from typing import Any

MAX_DEPTH = 200
"""Levels of nested lists and mappings; what lies deeper is left out, since neither writers nor readers hold it."""
_TOO_DEEP = "... (nested too deep)"
_replaced = 0


def replaced_count() -> int:
    """How many non-finite numbers this process turned into null."""
    return _replaced


def finite(value: Any, depth: int = MAX_DEPTH) -> Any:
    """``value`` with every NaN and infinity replaced by None; keys that JSON has no form for as text.

    ``depth``: how many more lists and mappings may lie in each other; a text stands in place of the next.
    """
    global _replaced  # noqa: PLW0603 - one process-wide counter, exported as a metric
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        _replaced += 1
        return None
    if not isinstance(value, dict | list | tuple):
        return value
    if not depth:
        return _TOO_DEEP
    if isinstance(value, dict):
        return {_key(key): finite(item, depth - 1) for key, item in value.items()}
    return [finite(item, depth - 1) for item in value]


def _key(key: Any) -> Any:
    return key if key is None or isinstance(key, str | int | float) else str(key)


def encodable(text: str) -> str:
    """``text`` with U+FFFD for every half of a surrogate pair: UTF-8 has no form for one, JSON's escapes do."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON text of ``value``, which UTF-8 can encode.

    Environments decide what records hold: what JSON has no form for (bytes, times) is written as ``str`` has it.
    """
    return encodable(json.dumps(finite(value), allow_nan=False, ensure_ascii=False, indent=indent, default=str))
