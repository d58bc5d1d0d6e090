"""Entries of ``x-kubernetes-validations``, their messages written as templates with CEL in braces."""

import json
import re
from typing import Any, Literal

Reason = Literal["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired"]
"""Of the API server's four. ``FieldValueDuplicate`` is none of ours: it leaves the message out."""
Validation = dict[str, str]

_HOLE = re.compile(r"\{([^{}]+)\}")
_QUOTED_HOLE = re.compile(r'"?\{[^{}]+\}"?')
_RESERVED = frozenset({"import", "namespace"})


def literal(value: Any) -> str:
    """A JSON scalar, or a list of such, as CEL."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return json.dumps(value)


def at(path: str, owner: str = "self") -> str:
    """A dotted path below ``owner`` as CEL spells it: reserved words stand between underscores."""
    return ".".join([owner, *(f"__{key}__" if key in _RESERVED else key for key in path.split("."))])


def is_set(path: str, owner: str = "self") -> str:
    """Whether every part of a dotted path is there and not null."""
    parts = path.split(".")
    return " && ".join(f"has({at('.'.join(parts[: end + 1]), owner)})" for end in range(len(parts)))


def value_or(path: str, default: Any, owner: str = "self") -> str:
    """The value at a path, or the default."""
    return f"({is_set(path, owner)} ? {at(path, owner)} : {literal(default)})"


def validation(rule: str, message: str, *, field: str = "", reason: Reason = "FieldValueInvalid") -> Validation:
    """A rule that holds for valid objects.

    Args:
        rule: CEL over ``self`` (and ``oldSelf``).
        message: what is wrong otherwise; ``{expression}`` holes are filled in by the API server.
        field: path below the place that the rule stands at, dotted; empty for the place itself.
        reason: kind of the API server's error.
    """
    entry = {"rule": rule, "message": _QUOTED_HOLE.sub("another value", message), "reason": reason}
    if _HOLE.search(message):
        entry["messageExpression"] = _expression(message)
    if field:
        entry["fieldPath"] = f".{field}"
    return entry


def refusal(
    condition: str, path: str, why: str, accepted: str = "no value", *, found: str = "", field: str = ""
) -> Validation:
    """A rule that is broken while ``condition`` holds and something is set at ``path``.

    Args:
        condition: CEL; empty: always.
        path: below the place that the rule stands at, dotted.
        why: first part of the message.
        accepted: last part of the message.
        found: what the message says of the value; by default the value.
        field: that the error names; by default ``path``.
    """
    told = found or f"{{{at(path)}}}"
    parts = [f"({condition})"] * bool(condition) + [is_set(path)]
    message = f"{why}; found {told}; accepted: {accepted}"
    return validation(f"!({' && '.join(parts)})", message, field=field or path, reason="FieldValueForbidden")


def formatted(text: str, *expressions: str) -> str:
    """CEL that puts values in place of the ``%s`` of a text. The cost of ``+`` on ``string(x)`` counts as unbounded."""
    return f"{literal(text)}.format([{', '.join(expressions)}])"


def _expression(message: str) -> str:
    """A message as CEL that makes a text."""
    return formatted(_HOLE.sub("%s", message.replace("%", "%%")), *_HOLE.findall(message))
