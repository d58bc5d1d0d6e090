"""One bad input, and where its files come from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from echorl_testing.manifests.documents import shortest

Arguments = list[str]


@dataclass(frozen=True)
class Case:
    """One call of ``echorl``."""

    name: str
    """Command, place and value."""
    arguments: Callable[[Path], Arguments]
    """Makes the files in an empty folder, and says the command line."""


def manifest(folder: Path) -> Path:
    """A valid manifest whose model is nowhere, so that nothing that it is given to starts anything."""
    return document(folder, shortest())


def document(folder: Path, value: object) -> Path:
    """A manifest file that holds ``value``."""
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(value, allow_unicode=False))
    return file


def rows(folder: Path) -> Path:
    """A data set of one row that cannot be read, so that no sandbox is made for it."""
    file = folder / "rows.jsonl"
    file.write_text('{"instance_id": "one", "statement": "mend it"}\n')
    return file


def run_directory(folder: Path) -> Path:
    """The directory of a run that has trained a step, evaluated, and been supervised."""
    root = folder / "run"
    records, attempt = root / "records" / "attempt_1", root / "attempts" / "1"
    records.mkdir(parents=True)
    attempt.mkdir(parents=True)
    (root / "run.json").write_text('{"uid": "u1", "name": "shortest", "created": "2026-01-01T00:00:00Z"}')
    (records / "steps.jsonl").write_text('{"step": 1, "attempt": 1, "reward/all/mean": 0.5}\n')
    (records / "evals.jsonl").write_text('{"step": 1, "attempt": 1, "environment": "digits", "reward": 0.5}\n')
    (records / "episodes.jsonl").write_text('{"step": 1, "attempt": 1, "episode": "e", "turns": [], "messages": []}\n')
    return root
