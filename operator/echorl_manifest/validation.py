"""From a document to an EchoRLRun, or to every problem that it has: keys and types, then rules across fields."""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from echorl_core.problem import Problem
from echorl_manifest.models.base import API_VERSION, KIND, ApiModel
from echorl_manifest.models.environments import EvalEnvironment, TrainEnvironment
from echorl_manifest.models.model import ModelSpec
from echorl_manifest.models.run import EchoRLRun, EchoRLRunSpec, Metadata
from echorl_manifest.problems import field_problems
from echorl_manifest.rules import rule_findings
from echorl_manifest.rules.finding import Finding
from echorl_manifest.rules.unsupported import unsupported_findings
from echorl_manifest.schema import Location, bare, known, path_text

# What stands in for a required field that is missing or wrong, so that the rules can look at the rest.
_STAND_INS: dict[tuple[type[ApiModel], str], Any] = {
    (EchoRLRun, "apiVersion"): API_VERSION,
    (EchoRLRun, "kind"): KIND,
    (EchoRLRun, "metadata"): {},
    (EchoRLRun, "spec"): {},
    (Metadata, "name"): "stand-in",
    (EchoRLRunSpec, "model"): {},
    (ModelSpec, "name"): "stand-in",
    (TrainEnvironment, "name"): "stand-in",
    (TrainEnvironment, "type"): "import:stand.in:factory",
    (EvalEnvironment, "name"): "stand-in-eval",
    (EvalEnvironment, "type"): "import:stand.in:factory",
}
_REPAIR_ROUNDS = 12


class InvalidRun(ValueError):
    """A document that is no valid EchoRLRun; carries every problem."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value


def _parent(document: Any, location: Location) -> Any:
    for segment in location[:-1]:
        document = document[segment]
    return document


def _remove(document: Any, location: Location) -> None:
    """Take a wrong value out; where it is a list's item, the whole list, or the indices of the others would move."""
    while location and isinstance(location[-1], int):
        location = location[:-1]
    if location:
        _parent(document, location).pop(location[-1], None)


def _mend(document: Any, location: Location, kind: str) -> None:
    _, owner = known(EchoRLRun, location[:-1])
    stand_in = _STAND_INS.get((bare(owner), str(location[-1]))) if location else None
    if stand_in is not None:
        _parent(document, location)[location[-1]] = _copy(stand_in)
    elif kind == "missing":
        _remove(document, location[:-1])
    else:
        _remove(document, location)


def _repaired(document: Any) -> EchoRLRun | None:
    """The valid part of a document, with defaults in place of the rest; None if it cannot be told."""
    try:
        document = _copy(document)
    except RecursionError:
        return None
    for _ in range(_REPAIR_ROUNDS):
        try:
            return EchoRLRun.model_validate(document)
        except ValidationError as error:
            problems = field_problems(EchoRLRun, document, error)
        if () in problems:
            return None
        for location, problem in sorted(problems.items(), key=lambda entry: -len(entry[0])):
            try:
                _mend(document, location, "missing" if problem.reason == "required" else "wrong")
            except (KeyError, IndexError, TypeError, AttributeError):
                continue  # it went with another one's list
    return None


def _touches(paths: tuple[str, ...], wrong: str) -> bool:
    return any(_within(path, wrong) or _within(wrong, path) for path in paths)


def _within(path: str, other: str) -> bool:
    return path == other or path.startswith((f"{other}.", f"{other}["))


def _findings(run: EchoRLRun, *, local: bool) -> Iterator[Finding]:
    yield from rule_findings(run.spec)
    yield from unsupported_findings(run.spec, local=local)


def parsed(document: object, *, local: bool = False) -> tuple[EchoRLRun | None, list[Problem]]:
    """The run of a document, or None and every problem; never both.

    Args:
        document: parsed YAML.
        local: refuse also what a cluster carries out and one machine does not.
    """
    try:
        run = EchoRLRun.model_validate(document)
    except ValidationError as error:
        wrong = field_problems(EchoRLRun, document, error)
    except RecursionError:
        return None, [Problem("manifest", "values that contain themselves", "a mapping of finite depth")]
    else:
        problems = [finding.problem for finding in _findings(run, local=local)]
        return (None, problems) if problems else (run, [])
    problems = list(wrong.values())
    rest = _repaired(document)
    if rest is not None:
        paths = [path_text(location) for location in wrong]
        problems += [
            finding.problem
            for finding in _findings(rest, local=local)
            if not any(_touches(finding.depends_on, path) for path in paths)
        ]
    return None, problems


def problems(document: object, *, local: bool = False) -> list[Problem]:
    """Every problem of a parsed YAML document; empty when it is a valid manifest. Raises nothing.

    Args:
        document: parsed YAML.
        local: refuse also what a cluster carries out and one machine does not.
    """
    return parsed(document, local=local)[1]


def load(document: object, *, local: bool = False) -> EchoRLRun:
    """The run that a parsed YAML document describes.

    Args:
        document: parsed YAML.
        local: refuse also what a cluster carries out and one machine does not.

    Raises:
        InvalidRun: with every problem.
    """
    run, found = parsed(document, local=local)
    if run is None:
        raise InvalidRun(found)
    return run
