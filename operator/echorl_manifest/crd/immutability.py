"""What cannot change on a run that exists, as transition rules, from the table of effects.

The rules stand on ``spec``, which is always there: on the field itself they would not be looked at when it is added or
taken away. A field that is absent, null or written out with its default is the same.
"""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from echorl_manifest.crd.validations import Validation, at, formatted, is_set, literal, validation, value_or
from echorl_manifest.models.base import ApiModel
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.mutability import REPLACED, Effect, effect_of
from echorl_manifest.schema import bare, is_model, keys

_WHY = "cannot change while the run exists"


def immutability() -> dict[str, list[Validation]]:
    """Transition rules by the place in the schema that they stand at."""
    rules: dict[str, list[Validation]] = {}
    for place, path, field in _immutable("spec", "", EchoRLRunSpec):
        rules.setdefault(place, []).append(_rule(path, field, REPLACED.get(f"{place}.{path}")))
    return rules


def _immutable(place: str, path: str, model: type[ApiModel]) -> Iterator[tuple[str, str, FieldInfo]]:
    """Where a rule stands, the path below it, and the field; all fields of ``model`` and below."""
    for key, field in keys(model).items():
        inner = f"{path}.{key}".lstrip(".")
        kind = bare(field.annotation)
        # A part that has a default is the same when it is left out: only what is in it counts.
        counts = not is_model(kind) or (_default(field) is None and not field.is_required())
        if counts and effect_of(f"{place}.{inner}") is Effect.IMMUTABLE:
            yield place, inner, field
        if is_model(kind):
            yield from _immutable(place, inner, kind)
        elif get_origin(kind) is tuple and is_model(bare(get_args(kind)[0])):
            yield from _immutable(f"{place}.{inner}[]", "", bare(get_args(kind)[0]))


def _default(field: FieldInfo) -> Any:
    return None if field.is_required() else field.get_default(call_default_factory=True)


def _rule(path: str, field: FieldInfo, replaced: str | None) -> Validation:
    """The rule of one field. ``replaced``: a value that matches this may become another one that does."""
    default, is_part = _default(field), is_model(bare(field.annotation))
    there, was_there = is_set(path), is_set(path, "oldSelf")
    if default is not None:
        same = f"{value_or(path, default)} == {value_or(path, default, 'oldSelf')}"
    else:
        same = f"({there}) == ({was_there})"
        same += "" if is_part else f" && (!({there}) || {at(path)} == {at(path, 'oldSelf')})"
    if replaced is not None:
        both = (f"{at(path, owner)}.matches({literal(replaced)})" for owner in ("self", "oldSelf"))
        same += f" || ({' && '.join(both)})"
    if is_part or isinstance(default, tuple):
        message = f"{_WHY}; found another value; accepted: the value that it was made with"
    else:
        quote = '"' if bare(field.annotation) is str or (default is not None and isinstance(default, str)) else ""
        found, accepted = _told(path, "self", default, quote), _told(path, "oldSelf", default, quote)
        message = f"{_WHY}; found {found}; accepted: {accepted}"
    return validation(same, message, field=path, reason="FieldValueForbidden")


def _told(path: str, owner: str, default: Any, quote: str) -> str:
    """A value in a message, as a hole that is filled in."""
    absent = "nothing" if owner == "self" else "no value"
    other = absent if default is None else f"{quote}{default}{quote}"
    text = formatted(f"{quote}%s{quote}", at(path, owner))
    return f"{{{is_set(path, owner)} ? {text} : {literal(other)}}}"
