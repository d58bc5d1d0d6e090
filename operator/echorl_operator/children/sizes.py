"""Which fields of a spec are large: what to shorten where its rendering does not fit into one object."""

from collections.abc import Iterator, Mapping
from typing import Any

from echorl_manifest.schema import Location, path_text
from echorl_operator.children.target import canonical_json

_SHARE = 8
"""A field is named if it takes more than this part of the whole, and nothing below it does alone."""
_MOST = 3
_LONGEST_KEY = 100
"""Characters; a longer one stands in no message."""


def largest_fields(spec: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Paths of the largest fields and their bytes as JSON, the largest first; at least one.

    Args:
        spec: as plain JSON.
    """
    least = _size(spec) // _SHARE
    fields = sorted(_large(spec, ("spec",), least), key=lambda field: -field[1])
    return [(path_text(where), size) for where, size in fields[:_MOST]]


def _large(value: Any, where: Location, least: int) -> Iterator[tuple[Location, int]]:
    parts = [(key, inner) for key, inner in _parts(value) if _size(inner) > least]
    if not parts:
        yield where, _size(value)
    for key, inner in parts:
        yield from _large(inner, (*where, key), least)


def _parts(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        yield from ((key, inner) for key, inner in value.items() if len(key) <= _LONGEST_KEY)
    elif isinstance(value, list):
        yield from enumerate(value)


def _size(value: Any) -> int:
    return len(canonical_json(value).encode())
