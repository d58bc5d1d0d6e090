"""The translation of pydantic's errors into problems of a manifest."""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from echorl_core.problem import Problem
from echorl_manifest.models.base import ApiModel
from echorl_manifest.schema import (
    Location,
    accepted_text,
    bare,
    found_text,
    known,
    literals,
    nearest,
    offered_keys,
    path_text,
)

NOT_SUPPORTED = "not supported yet"


def _at(document: Any, location: Location) -> Any:
    for segment in location:
        document = document[segment]
    return document


def _meant(word: str | None) -> str:
    return f"did you mean {word}?" if word else ""


def unknown_key(location: Location, model: type[ApiModel]) -> Problem:
    """The problem of a key that ``model`` does not have."""
    key = str(location[-1])
    options = offered_keys(model)
    meant = _meant(nearest(key, options))
    reason = f"unknown key, {meant}" if meant else "unknown key"
    return Problem(path_text(location), found_text(key), f"the keys {', '.join(options)}", reason)


def _field_problem(root: type[ApiModel], document: Any, error: Any) -> tuple[Location, Problem]:
    raw: Sequence[Any] = error["loc"]
    if error["type"] == "extra_forbidden":
        location, model = known(root, raw[:-1])
        return (*location, raw[-1]), unknown_key((*location, raw[-1]), bare(model))
    location, annotation = known(root, raw)
    accepted = accepted_text(annotation)
    if error["type"] == "missing":
        return location, Problem(path_text(location), "nothing", accepted, "required")
    value = _at(document, location)
    reason = _meant(nearest(value, literals(annotation))) if isinstance(value, str) else ""
    if error["type"] == "value_error" and not isinstance(value, str):
        return location, Problem(path_text(location), str(error["ctx"]["error"]), accepted)
    return location, Problem(path_text(location), found_text(value), accepted, reason)


def field_problems(root: type[ApiModel], document: Any, error: ValidationError) -> dict[Location, Problem]:
    """One problem for each place that pydantic complained about, in the document's order."""
    problems: dict[Location, Problem] = {}
    for entry in error.errors(include_url=False):
        location, problem = _field_problem(root, document, entry)
        problems.setdefault(location, problem)
    return problems
