"""Rows of rules in Python: from a spec to what they find."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from echorl_core.problem import Problem
from echorl_manifest.models.base import ApiModel
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.finding import Finding, finding
from echorl_manifest.rules.row import Compared, Condition, Needed, Refused, Row


def row_findings(rows: Iterable[Row], spec: EchoRLRunSpec) -> Iterator[Finding]:
    """What the rows find, in their order."""
    for row in rows:
        for place in row.places:
            for path, part in _parts(spec, place):
                if all(_holds(condition, part, spec) for condition in row.when):
                    yield from _found(row, path, part)


def _found(row: Row, path: str, part: ApiModel) -> Iterator[Finding]:
    value, where = _value(part, row.field), f"{path}.{row.field}"
    also = [
        source if condition.is_absolute else f"{path}.{source}"
        for condition in row.when
        if condition.is_open
        for source in condition.paths
    ]
    match row:
        case Refused() if _is_refused(row, part, value):
            if row.found:
                yield Finding(Problem(where, row.found, row.accepted, row.reason), tuple(also))
            else:
                yield finding(where, _told(value), row.accepted, row.reason, also=also)
        case Needed() if not _is_given(value):
            yield finding(where, value, row.accepted, row.reason, also=also)
        case Compared():
            other = _value(part, row.other)
            if row.defaults is not None:
                value, other = (
                    default if one is None else one for one, default in zip((value, other), row.defaults, strict=True)
                )
            if value is not None and other is not None and not _compares(value, row.sign, other):
                bound = f"{other:g}" if isinstance(other, float) else other
                accepted = f"{row.sign} {row.other} ({bound})"
                yield finding(where, value, accepted, row.reason, also=(*also, f"{path}.{row.other}"))
        case _:
            return


def _is_refused(row: Refused, part: ApiModel, value: Any) -> bool:
    is_one = value not in row.but if row.only is None else value in row.only
    return _is_written(part, row.field) and value != {} and is_one


def _is_given(value: Any) -> bool:
    return value is not None and value not in ((), {})


def _compares(value: Any, sign: str, other: Any) -> bool:
    if sign == "a multiple of":
        return bool(value % other == 0)
    return bool(value < other if sign == "a number below" else value >= other)


def _holds(condition: Condition, part: ApiModel, spec: EchoRLRunSpec) -> bool:
    owner: ApiModel = spec if condition.is_absolute else part
    return any(_is_so(condition, owner, path.removeprefix("spec.")) for path in condition.paths) is condition.holds


def _is_so(condition: Condition, owner: ApiModel, path: str) -> bool:
    value = _value(owner, path)
    if condition.pattern is not None:
        return isinstance(value, str) and re.search(condition.pattern, value) is not None
    return _is_given(value) if condition.values is None else value in condition.values


def _parts(spec: EchoRLRunSpec, place: str) -> Iterator[tuple[str, ApiModel]]:
    """The parts of the spec that are written at a place, with their paths."""
    found: list[tuple[str, ApiModel]] = [("spec", spec)]
    for segment in place.split(".")[1:]:
        found = [deeper for path, part in found for deeper in _below(path, part, segment)]
    yield from found


def _below(path: str, part: ApiModel, segment: str) -> Iterator[tuple[str, ApiModel]]:
    key = segment.rstrip("[]{}")
    if not _is_written(part, key):
        return
    value, path = _value(part, key), f"{path}.{key}"
    if segment.endswith("[]"):
        yield from ((f"{path}[{index}]", item) for index, item in enumerate(value))
    elif segment.endswith("{}"):
        yield from ((f"{path}.{name}", item) for name, item in value.items())
    else:
        yield path, value


def _owner(part: ApiModel, path: str) -> tuple[ApiModel | None, str]:
    """The part that holds a field, None where it is not there, and the field's key in it."""
    *most, last = path.split(".")
    owner: ApiModel | None = part
    for key in most:
        owner = None if owner is None else getattr(owner, _names(type(owner))[key])
    return owner, last


def _value(part: ApiModel, path: str) -> Any:
    """A field's value; None where it is not set."""
    owner, key = _owner(part, path)
    return None if owner is None else getattr(owner, _names(type(owner))[key])


def _is_written(part: ApiModel, path: str) -> bool:
    """Whether the manifest sets the field, and so everything above it."""
    owner, key = _owner(part, path)
    return owner is not None and _names(type(owner))[key] in owner.model_fields_set


@cache
def _names(model: type[ApiModel]) -> dict[str, str]:
    """Names of a model's fields by key."""
    return {field.alias or name: name for name, field in model.model_fields.items()}


def _told(value: Any) -> Any:
    """A value as it was written."""
    return value.model_dump(by_alias=True, exclude_unset=True) if isinstance(value, ApiModel) else value
