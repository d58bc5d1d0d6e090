"""A run's records as the orchestrator wrote them, with redone steps superseded.

After a resume, steps of the earlier attempt beyond the checkpoint were trained again: rows of the newest attempt win.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echorl_core.rundir import RunDirectory

Row = dict[str, Any]


@dataclass(frozen=True)
class RunRecords:
    """Everything that a report shows, oldest first."""

    steps: list[Row]
    evals: list[Row]
    episodes: list[Row]
    updates: list[Row]
    """Weight updates of engines, over all attempts."""
    supervisor: Row = field(default_factory=dict)
    """What the supervisor noted: restarts, set-up time, timeline."""
    baselines: Row = field(default_factory=dict)
    """Reference figures that came with the model, such as the NLL of a unigram predictor."""


def _rows(path: Path) -> Iterator[Row]:
    if not path.is_file():
        return
    with path.open() as file:
        for line in file:
            # A process may have been killed in the middle of its last line.
            if line.endswith("\n"):
                yield json.loads(line)


def _superseded(rows: list[Row], *keys: str) -> list[Row]:
    """Of rows with equal keys those of the newest attempt; nothing that an attempt did beyond its successor's start."""
    starts: dict[int, int] = {}
    for row in rows:
        starts[row["attempt"]] = min(starts.get(row["attempt"], row["step"]), row["step"])
    kept: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if any(attempt > row["attempt"] and start <= row["step"] for attempt, start in starts.items()):
            continue
        kept[tuple(row.get(key) for key in keys)] = row
    return sorted(kept.values(), key=lambda row: row["step"])


def _json(path: Path) -> Row:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found if isinstance(found, dict) else {}


def read_records(root: Path, model_path: Path | None = None) -> RunRecords:
    """Read every attempt's records of the run in ``root``."""
    tables: dict[str, list[Row]] = {name: [] for name in ("steps", "evals", "episodes", "updates")}
    for _, folder in RunDirectory(root).recorded_attempts():
        for name, rows in tables.items():
            rows.extend(_rows(folder / f"{name}.jsonl"))
    return RunRecords(
        steps=_superseded(tables["steps"], "step"),
        evals=_superseded(tables["evals"], "step", "environment"),
        episodes=_superseded(tables["episodes"], "step", "episode"),
        updates=tables["updates"],
        supervisor=_json(root / "state.json"),
        baselines=_json(model_path / "baselines.json") if model_path else {},
    )
