"""A manifest file with its overrides: read, checked, written. Every command that takes a FILE goes through here."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from echorl_cli.overrides import OverrideProblem, apply_override
from echorl_cli.yaml_text import MAX_TEXT_BYTES, YamlProblem, parse_yaml, to_yaml
from echorl_core.capped import read_capped
from echorl_manifest import EchoRLRun, Problem
from echorl_manifest.validation import parsed


class InvalidManifest(Exception):
    """A file that is no valid manifest; carries every problem."""

    def __init__(self, path: Path, problems: list[Problem]) -> None:
        self.path = path
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{path}: {problem}" for problem in problems))


def _document(path: Path) -> Any:
    try:
        text = read_capped(path, MAX_TEXT_BYTES).decode()
    except OSError as error:
        cause = error.strerror or str(error)
        raise InvalidManifest(path, [Problem("file", cause, "a readable YAML file")]) from error
    except UnicodeDecodeError as error:
        raise InvalidManifest(path, [Problem("file", f"byte {error.start} is no UTF-8", "UTF-8 text")]) from error
    try:
        return parse_yaml(text)
    except YamlProblem as error:
        raise InvalidManifest(path, [error.problem]) from error


def read_manifest(path: Path, overrides: Iterable[str] = (), *, local: bool = False) -> EchoRLRun:
    """The run that a file describes, after ``--set`` overrides.

    Args:
        path: of the file.
        overrides: ``path=value`` each.
        local: refuse also what a cluster carries out and one machine does not.

    Raises:
        InvalidManifest: with every problem of file, overrides and manifest.
    """
    document = _document(path)
    problems = []
    for override in overrides:
        if not isinstance(document, dict):
            break  # the document's own problem says enough
        try:
            apply_override(document, override)
        except OverrideProblem as error:
            problems.append(error.problem)
    run, faults = parsed(document, local=local)
    problems += faults
    if run is None or problems:
        raise InvalidManifest(path, problems)
    return run


def manifest_text(run: EchoRLRun) -> str:
    """A run as YAML, with every default written out; reads back as the same run."""
    plain = run.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"status"})
    return to_yaml(plain)
