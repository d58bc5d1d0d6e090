"""A run's records as the orchestrator wrote them, with redone steps superseded.

After a resume, steps of the earlier attempt beyond the checkpoint were trained again: rows of the newest attempt win.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echorl_core.capped import MAX_JSON_BYTES, read_capped
from echorl_core.rundir import RunDirectory

Row = dict[str, Any]

_NEEDED = {"steps": ("step", "attempt"), "evals": ("step", "attempt"), "episodes": ("step", "attempt"), "updates": ()}
"""Tables of records, and the whole numbers that tell which of their rows count."""


_LISTS_OF_MAPPINGS = ("turns", "messages")
"""Of an episode."""
_LONGEST_NUMBER = 19


@dataclass(frozen=True)
class RunRecords:
    """Everything that a report shows, oldest first."""

    steps: list[Row]
    evals: list[Row]
    """Those that were played."""
    episodes: list[Row]
    updates: list[Row]
    """Weight updates of engines, over all attempts."""
    supervisor: Row = field(default_factory=dict)
    """What the supervisor noted: restarts, set-up time, timeline; of a run in a cluster what its attempts left."""
    skipped_evals: list[Row] = field(default_factory=list)
    """``step``, ``environment`` and why (``skipped``) of evals that were due and that no attempt has played."""
    baselines: Row = field(default_factory=dict)
    """Reference figures that came with the model, such as the NLL of a unigram predictor."""
    exports: list[str] = field(default_factory=list)
    """Folders of the weights alone that are there, relative to the run's, ascending by step."""


class DamagedRecords(Exception):
    """A file of records that is not what was written."""

    def __init__(self, path: Path, found: str) -> None:
        super().__init__(f"{path}: found {found}; accepted: records as the orchestrator wrote them")


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[Row]:
    try:
        if not path.is_file():
            return
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, start=1):
                # A process may have been killed in the middle of its last line.
                if line.endswith("\n"):
                    yield _row(path, number, line, needed)
    except OSError as error:
        raise DamagedRecords(path, error.strerror or str(error)) from None


def _row(path: Path, number: int, line: str, needed: tuple[str, ...]) -> Row:
    try:
        row = json.loads(line, parse_int=_whole_number)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict) or any(not isinstance(row.get(key), int) for key in needed):
        raise DamagedRecords(path, f"no record in line {number}")
    for key in _LISTS_OF_MAPPINGS:
        if not _are_mappings(row.get(key)):
            raise DamagedRecords(path, f"{key} that are no list of mappings in line {number}")
    return row


def _whole_number(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError("a number beyond 64 bits")
    return int(text)


def _are_mappings(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(one, dict) for one in value))


def own_attempts(run: RunDirectory) -> list[tuple[int, Path]]:
    """Attempts that left records, ascending, with their folders; none of another run's that was left in this folder.

    Raises:
        DamagedRecords: a file that tells whose they are holds something else; it is named.
    """
    owner = read_json(run.identity_file).get("uid")
    attempts = run.recorded_attempts()
    return [
        (attempt, folder)
        for attempt, folder in attempts
        if owner is None or read_json(run.attempt(attempt) / "prepared.json").get("run_uid", owner) == owner
    ]


def attempt_starts(run: RunDirectory) -> dict[int, int]:
    """First step of each attempt, as it was prepared; without those whose ``prepared.json`` was not copied.

    Raises:
        DamagedRecords: such a file holds something else; it is named.
    """
    found = {n: read_json(run.attempt(n) / "prepared.json").get("resume_step") for n, _ in own_attempts(run)}
    return {attempt: step + 1 for attempt, step in found.items() if isinstance(step, int)}


def _superseded(rows: list[Row], prepared: dict[int, int], *keys: str) -> list[Row]:
    """Keep the newest attempt's of rows with equal keys, and nothing that an attempt did beyond its successor's start.

    Where ``prepared`` does not tell an attempt's start, its first row does.
    """
    starts: dict[int, int] = {}
    for row in rows:
        starts[row["attempt"]] = min(starts.get(row["attempt"], row["step"]), row["step"])
    starts |= prepared
    kept: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if any(attempt > row["attempt"] and start <= row["step"] for attempt, start in starts.items()):
            continue
        kept[tuple(str(row.get(key)) for key in keys)] = row
    return sorted(kept.values(), key=lambda row: row["step"])


def _played(rows: list[Row], prepared: dict[int, int]) -> tuple[list[Row], list[Row]]:
    """Evals that were played, and those that were skipped: these lie below an attempt's start and supersede nothing."""
    played = [row for row in rows if "skipped" not in row]
    known = {(row["step"], str(row.get("environment"))) for row in played}
    skipped = {(row["step"], str(row.get("environment"))): row for row in rows if "skipped" in row}
    lost = [row for key, row in skipped.items() if key not in known]
    return _superseded(played, prepared, "step", "environment"), sorted(lost, key=lambda row: row["step"])


def read_json(path: Path) -> Row:
    """A mapping that a run wrote about itself; empty where there is no file.

    Raises:
        DamagedRecords: the file holds something else than JSON.
    """
    try:
        found = json.loads(read_capped(path, MAX_JSON_BYTES).decode(), parse_int=_whole_number)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DamagedRecords(path, error.strerror or str(error)) from None
    except (ValueError, RecursionError):
        raise DamagedRecords(path, "no JSON") from None
    return found if isinstance(found, dict) else {}


def name_of(root: Path) -> str:
    """What the run is called; the folder's name if nothing says it."""
    return str(read_json(RunDirectory(root).identity_file).get("name") or root.resolve().name)


def _without_supervisor(run: RunDirectory, steps: list[Row]) -> Row:
    """What attempts left in the directory of a run in a cluster, where no supervisor kept ``state.json``."""
    timeline = []
    for attempt, _ in run.recorded_attempts():
        began = next((row.get("time") for row in steps if row["attempt"] == attempt), None)
        resumed = read_json(run.attempt(attempt) / "prepared.json").get("resume_step")
        reason = {None: "", 0: "from the start"}.get(resumed, f"from the checkpoint of step {resumed}")
        timeline.append({"since": began or "", "phase": "Running", "attempt": attempt, "reason": reason})
    # An attempt also follows an edit or a pause, so their number is not that of the restarts.
    return {"restarts": None, "timeline": timeline}


def _supervisor(path: Path) -> Row:
    state = read_json(path)
    if not _are_mappings(state.get("timeline")):
        raise DamagedRecords(path, "a timeline that is no list of mappings")
    return {key: value for key, value in state.items() if value is not None or key != "timeline"}


def _numbers(found: Row) -> Row:
    return {key: value for key, value in found.items() if isinstance(value, int | float)}


def read_records(root: Path, model_path: Path | None = None) -> RunRecords:
    """Read every attempt's records of the run in ``root``, which may be a copy from a cluster's volume.

    Raises:
        DamagedRecords: a file holds something else; it is named.
    """
    tables: dict[str, list[Row]] = {name: [] for name in _NEEDED}
    run = RunDirectory(root)
    for _, folder in own_attempts(run):
        for name, rows in tables.items():
            rows.extend(_rows(folder / f"{name}.jsonl", _NEEDED[name]))
    prepared = attempt_starts(run)
    evals, skipped = _played(tables["evals"], prepared)
    return RunRecords(
        steps=_superseded(tables["steps"], prepared, "step"),
        evals=evals,
        skipped_evals=skipped,
        episodes=_superseded(tables["episodes"], prepared, "step", "episode"),
        updates=tables["updates"],
        supervisor=_supervisor(root / "state.json") or _without_supervisor(run, tables["steps"]),
        baselines=_numbers(read_json(model_path / "baselines.json")) if model_path else {},
        exports=[str(folder.relative_to(root)) for _, folder in run.export_steps()],
    )
