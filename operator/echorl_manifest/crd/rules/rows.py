"""Rows of rules as CEL.

A row stands at its place. One with a condition elsewhere in the spec stands at the part that holds both, from where an
item of a list cannot be named: the error names the list, and its message the items.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, get_origin

from echorl_manifest.crd.validations import Validation, at, is_set, literal, validation, value_or
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.row import Compared, Condition, Needed, Refused, Row
from echorl_manifest.schema import bare, inside, is_model, keys, literals

_CONTAINER = re.compile(r"(\[\]|\{\})\.?")
_ITEMS = "efg"
"""Names of items of lists within lists."""


def row_validations(rows: Iterable[Row]) -> Iterable[tuple[str, Validation]]:
    """Rules with the places in the schema that they stand at."""
    for row in rows:
        for place in row.places:
            match row:
                case Refused():
                    if row.in_cel:
                        yield _refusal(row, place)
                case Needed():
                    yield place, _need(row, place)
                case Compared():
                    yield place, _comparison(row, place)


def by_place(rules: Iterable[tuple[str, Validation]]) -> dict[str, tuple[Validation, ...]]:
    """The rules of each place, in their order."""
    found: dict[str, tuple[Validation, ...]] = {}
    for place, rule in rules:
        found[place] = (*found.get(place, ()), rule)
    return found


def _need(row: Needed, place: str) -> Validation:
    model, others = _at_place(place), _exceptions(row, place)
    found = "an empty list" if get_origin(_inside(model, row.field)) is tuple else "nothing"
    rule = " || ".join([*others, f"({_is_given(model, row.field)})"])
    return validation(rule, _message(row, found, row.accepted), field=row.field, reason="FieldValueRequired")


def _comparison(row: Compared, place: str) -> Validation:
    model, others, sides = _at_place(place), _exceptions(row, place), []
    defaults = row.defaults or (_default(model, row.field), _default(model, row.other))
    for path, default in zip((row.field, row.other), defaults, strict=True):
        sides.append(at(path) if default is None else value_or(path, default))
        others += [f"!({is_set(path)})"] * (default is None)
    value, bound = sides
    rule = {
        "at least": f"{value} >= {bound}",
        "a number below": f"{value} < {bound}",
        "a multiple of": f"{bound} < 1 || {value} % {bound} == 0",
    }[row.sign]
    message = _message(row, f"{{{value}}}", f"{row.sign} {row.other} ({{{bound}}})")
    return validation(" || ".join([*others, rule]), message, field=row.field)


def _exceptions(row: Needed | Compared, place: str) -> list[str]:
    for condition in row.when:
        if condition.is_absolute and not condition.paths[0].startswith(f"{place}."):
            # Only what is refused may stand higher than its place.
            found = f"found a condition of {condition.paths[0]}, accepted is one below"
            raise ValueError(f"row of {place}.{row.field}: {found}")
    return [f"!({_holds(condition, _at_place(place), stands=place)})" for condition in row.when]


def _refusal(row: Refused, place: str) -> tuple[str, Validation]:
    elsewhere = [condition for condition in row.when if condition.is_absolute]
    stands = place
    for condition in elsewhere:
        stands = _shared(stands, condition.paths[0])
    above = [f"({_holds(condition, _at_place(stands), stands=stands)})" for condition in elsewhere]
    *hops, below = _CONTAINER.split(place.removeprefix(stands).removeprefix("."))
    if hops:
        list_path, item = hops[0], _ITEMS[0]
        test = _wrong_below(row, place, hops[2:], below, item)
        wrong = f"{is_set(list_path)} && {at(list_path)}.exists({item}, {test})"
        items = f"{at(list_path)}.filter({item}, {test}).map({item}, {item}"
        is_type = len(hops) == 2 and not below and row.field == "type"
        path, found = list_path, f"{{{items}.type)}}" if is_type else f"{_words(row, below)} in {{{items}.name)}}"
    else:
        path, wrong = _joined(below, row.field), _wrong(row, place, "self", below)
        found = _found(row, place, path)
    rule = f"!({' && '.join([*above, wrong])})"
    return stands, validation(rule, _message(row, found, row.accepted), field=path, reason="FieldValueForbidden")


def _wrong_below(row: Refused, place: str, hops: Sequence[str], below: str, owner: str) -> str:
    """Whether an item, or one in its lists, breaks the row."""
    if not hops:
        return _wrong(row, place, owner, below)
    path, kind, *more = hops
    name = _ITEMS[_ITEMS.index(owner[0]) + 1]
    item = name if kind == "[]" else f"{at(path, owner)}[{name}]"
    return f"{is_set(path, owner)} && {at(path, owner)}.exists({name}, {_wrong_below(row, place, more, below, item)})"


def _wrong(row: Refused, place: str, owner: str, below: str) -> str:
    """Whether the row is broken, as far as its place can tell."""
    field, model = _joined(below, row.field), _at_place(place)
    near = [condition for condition in row.when if not condition.is_absolute]
    parts = [f"({_holds(condition, model, owner=owner, below=below)})" for condition in near]
    parts.append(is_set(field, owner))
    if row.only is not None:
        parts.append(_is_one_of(at(field, owner), row.only))
    if row.but:
        parts.append(f"!({_is_one_of(at(field, owner), row.but)})")
    return " && ".join(parts)


def _holds(condition: Condition, model: Any, *, owner: str = "self", below: str = "", stands: str = "") -> str:
    """Whether a condition holds; its paths are below ``stands``, those in CEL below ``owner`` and ``below``."""
    tests = []
    for path in (path.removeprefix(f"{stands}.") for path in condition.paths):
        place = _joined(below, path)
        if condition.pattern is not None:
            text = value_or(place, _default(model, path) or "", owner)
            tests.append(f"{text}.matches({literal(condition.pattern)})")
        elif condition.values is None:
            tests.append(_is_given(model, path, place, owner))
        else:
            tests.append(_is_one_of(value_or(place, _default(model, path) or "", owner), condition.values))
    found = " || ".join(tests if len(tests) == 1 else map("({})".format, tests))
    return found if condition.holds else f"!({found})"


def _is_one_of(value: str, options: Sequence[Any]) -> str:
    return f"{value} == {literal(options[0])}" if len(options) == 1 else f"{value} in {literal(options)}"


def _is_given(model: Any, path: str, place: str = "", owner: str = "self") -> str:
    place = place or path
    is_list = get_origin(_inside(model, path)) in {tuple, dict}
    return is_set(place, owner) + (f" && size({at(place, owner)}) > 0" if is_list else "")


def _message(row: Row, found: str, accepted: str) -> str:
    return f"{row.reason}; " * bool(row.reason) + f"found {found}; accepted: {accepted}"


def _found(row: Refused, place: str, path: str) -> str:
    """The value, as the error shows it. ``path``: from where the rule stands."""
    annotation = _inside(_at_place(place), row.field)
    if row.found or is_model(annotation):
        return row.found or "a mapping"
    if get_origin(annotation) is tuple:
        return "a list"
    if row.only is not None and len(row.only) == 1:
        return _word(row.only[0])
    return f'"{{{at(path)}}}"' if annotation is str or literals(annotation) else f"{{{at(path)}}}"


def _words(row: Refused, below: str) -> str:
    """What is wrong with items that the error cannot name."""
    if row.found or row.only is None:
        return row.found or _joined(below, row.field)
    return ", ".join(map(_word, row.only))


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else f"{value:g}"


def _shared(place: str, path: str) -> str:
    """The longest path that both begin with."""
    pairs = zip(place.split("."), path.split("."), strict=False)
    shared = []
    for one, other in pairs:
        if one != other:
            break
        shared.append(one)
    return ".".join(shared)


def _joined(*paths: str) -> str:
    return ".".join(filter(None, paths))


def _at_place(place: str) -> Any:
    """The model at a place such as ``spec.environments.train[].members{}``."""
    return _inside(EchoRLRunSpec, _joined(*_CONTAINER.sub(".*.", place).rstrip(".").split(".")[1:]))


def _inside(annotation: Any, path: str) -> Any:
    """What stands at a dotted path below; ``*`` is any item."""
    for key in path.split(".") if path else ():
        core = bare(annotation)
        annotation = inside(core, 0 if key == "*" and get_origin(core) is tuple else key)
    return bare(annotation)


def _default(model: Any, path: str) -> Any:
    """Of a field; None where there is none."""
    *most, last = path.split(".")
    field = keys(_inside(model, ".".join(most)))[last]
    return None if field.is_required() else field.get_default(call_default_factory=True)
