"""Nested tables and lists, addressed by location: read, set, take out, list the leaves."""

import re
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from typing import Any

from echorl_manifest.schema import Location

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d*)\]")


class Missing(Enum):
    """The type of MISSING, which is nobody's value."""

    MISSING = "missing"


MISSING = Missing.MISSING
"""Nothing stands there. A null that was written is None."""


@lru_cache(maxsize=4096)
def location(path: str) -> Location:
    """``orchestrator.train.source[0].name`` in parts. ``[]`` stands for every item of a list, as the text ``[]``."""
    steps: list[str | int] = []
    for name, index in _STEP.findall(path):
        steps.append(name or (int(index) if index else "[]"))
    return tuple(steps)


def at(tree: Any, where: Location) -> Any:
    """The value that stands there, or MISSING."""
    for step in where:
        if isinstance(step, int):
            if not isinstance(tree, list) or step >= len(tree):
                return MISSING
            tree = tree[step]
        elif isinstance(tree, dict) and step in tree:
            tree = tree[step]
        else:
            return MISSING
    return tree


def put(tree: dict[str, Any], where: Location, value: Any) -> None:
    """Set a value; tables on the way are made, a null on the way becomes one."""
    below: Any = tree
    for step in where[:-1]:
        if isinstance(step, int):
            below = below[step]
            continue
        if not isinstance(below.get(step), dict | list):
            below[step] = {}
        below = below[step]
    below[where[-1]] = value


def take(tree: dict[str, Any], where: Location) -> Any:
    """Remove a value and return it; tables that it leaves empty go with it. MISSING if there is none."""
    parent = at(tree, where[:-1])
    if not isinstance(parent, dict) or where[-1] not in parent:
        return MISSING
    value = parent.pop(where[-1])
    if not parent and where[:-1] and isinstance(where[-2], str):
        take(tree, where[:-1])
    return value


def expanded(tree: Any, where: Location) -> Iterator[Location]:
    """The locations that one with ``[]`` in it stands for."""
    if "[]" not in where:
        yield where
        return
    depth = where.index("[]")
    items = at(tree, where[:depth])
    for index in range(len(items) if isinstance(items, list) else 0):
        yield from expanded(tree, (*where[:depth], index, *where[depth + 1 :]))


def leaves(value: Any, where: Location = ()) -> Iterator[tuple[Location, Any]]:
    """Every value that is neither a table nor a list of tables; of empty ones themselves."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*where, key))
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from leaves(item, (*where, index))
    else:
        yield where, value
