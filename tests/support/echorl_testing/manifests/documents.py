"""Manifests as parsed documents, for tests to change."""

import copy
import functools
from pathlib import Path
from typing import Any

from echorl_cli.yaml_text import parse_yaml

_GOLDEN = Path(__file__).parents[3] / "golden"


@functools.cache
def _golden(name: str) -> dict[str, Any]:
    document: dict[str, Any] = parse_yaml((_GOLDEN / name).read_text())
    return document


def shortest() -> dict[str, Any]:
    """The shortest valid manifest."""
    return copy.deepcopy(_golden("shortest.yaml"))


def full() -> dict[str, Any]:
    """A valid manifest that sets every field that is supported."""
    return copy.deepcopy(_golden("full.yaml"))


def with_value(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with ``value`` at a dotted path (list indices are numbers); mappings are made where there are none."""
    changed = copy.deepcopy(document)
    container: Any = changed
    parts: list[Any] = [int(part) if part.isdigit() else part for part in path.split(".")]
    *parents, last = parts
    for part in parents:
        container = container[part] if isinstance(container, list) else container.setdefault(part, {})
    if isinstance(container, list) and last == len(container):
        container.append(value)
    else:
        container[last] = value
    return changed


def with_name(name: str, **spec: Any) -> dict[str, Any]:
    """The shortest manifest under a name, with blocks added or replaced."""
    document = shortest()
    document["metadata"] = {"name": name}
    document["spec"] |= spec
    return document
