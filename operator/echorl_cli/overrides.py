"""``--set path=value``: dotted overrides of a manifest before it is validated."""

import re
from typing import Any

from echorl_cli.yaml_text import YamlProblem, parse_yaml
from echorl_manifest import EchoRLRun, Problem
from echorl_manifest.problems import unknown_key
from echorl_manifest.schema import (
    Location,
    Segment,
    accepted_text,
    bare,
    found_text,
    inside,
    is_model,
    keys,
    path_text,
)

_SEGMENT = re.compile(r"\.?([^.\[\]=]+)|\[(\d+)\]")


class OverrideProblem(Exception):
    """One override that cannot be applied."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def _bad(override: str, accepted: str, reason: str = "") -> OverrideProblem:
    return OverrideProblem(Problem(f"--set {override}", found_text(override), accepted, reason))


def _location(override: str) -> tuple[Location, str]:
    """The location that an override names, from the document's root, and the text of its value."""
    path, equals, value = override.partition("=")
    path = path.strip()
    segments: list[Segment] = []
    position = 0
    while match := _SEGMENT.match(path, position):
        name, index = match.groups()
        segments.append(int(index) if index else name)
        position = match.end()
    if not equals or not segments or position != len(path):
        raise _bad(override, "path=value, for example maxSteps=3 or environments.train[0].weight=2")
    if segments[0] not in keys(EchoRLRun):
        segments.insert(0, "spec")
    return tuple(segments), value


def _checked(location: Location) -> Location:
    """The location, with list indices as numbers; refused unless the models know all of it."""
    annotation: Any = EchoRLRun
    checked: Location = ()
    for segment in location:
        if isinstance(segment, str) and segment.isdigit() and inside(annotation, 0) not in {None, Any}:
            segment = int(segment)  # noqa: PLW2901 - `train.0.weight` is `train[0].weight`
        deeper = inside(annotation, segment)
        core = bare(annotation)
        if deeper is None and is_model(core):
            raise OverrideProblem(unknown_key((*checked, segment), core))
        if deeper is None:
            raise OverrideProblem(
                Problem(path_text(checked), f"the key {segment!r} inside it", accepted_text(annotation))
            )
        checked, annotation = (*checked, segment), deeper
    return checked


def _descend(container: Any, location: Location, depth: int) -> Any:
    """What stands under ``location[depth]``; a mapping is made where there is nothing."""
    segment = location[depth]
    where = path_text(location[:depth])
    if isinstance(segment, int):
        if not isinstance(container, list):
            raise OverrideProblem(Problem(where, found_text(container), "a list, for an index to be set in"))
        if segment >= len(container):
            accepted = f"an index from 0 to {len(container) - 1}" if container else "no index, the list is empty"
            raise OverrideProblem(Problem(path_text(location[: depth + 1]), f"a list of {len(container)}", accepted))
        return container[segment]
    if not isinstance(container, dict):
        raise OverrideProblem(Problem(where, found_text(container), "a mapping, for a key to be set in"))
    return container.get(segment)


def _set(document: dict[str, Any], location: Location, value: Any) -> None:
    container: Any = document
    for depth, segment in enumerate(location[:-1]):
        below = _descend(container, location, depth)
        if below is None:
            below = [] if isinstance(location[depth + 1], int) else {}
            container[segment] = below
        container = below
    _descend(container, location, len(location) - 1)
    container[location[-1]] = value


def apply_override(document: dict[str, Any], override: str) -> None:
    """Set one ``path=value`` in ``document``. The value is YAML; an empty one means not set.

    Raises:
        OverrideProblem: no ``path=value``, a path that no manifest has, or a value that is no YAML.
    """
    location, text = _location(override)
    location = _checked(location)
    try:
        value = parse_yaml(text)
    except YamlProblem as error:
        raise OverrideProblem(Problem(path_text(location), error.problem.found, "a YAML value")) from None
    _set(document, location, value)
