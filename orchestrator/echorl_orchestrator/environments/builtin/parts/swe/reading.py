"""Reads a data set of rows, a JSONL file or a folder of tasks, and says of each that cannot be used why."""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echorl_orchestrator.environments.builtin.parts.swe.formats import Defaults, RowError, read_row, row_key
from echorl_orchestrator.environments.builtin.parts.swe.row import LONGEST_PATCH_BYTES, Row

LONGEST_LINE_BYTES = 64 << 20
_REWARD = "/logs/verifier/reward.txt"


@dataclass
class DataSet:
    """What was found."""

    rows: list[Row] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """A sentence for each row that cannot be used: where it stands, the field, what is accepted."""
    refused_keys: list[str] = field(default_factory=list)
    """Their keys, of those that have one."""


def read_data_set(path: Path, defaults: Defaults, exclude: frozenset[str] = frozenset()) -> DataSet:
    """All rows of ``path``: a JSONL file of rows, or a folder that holds a folder for each task.

    Args:
        path: of the file or folder.
        defaults: for what rows do not say.
        exclude: keys of rows that are left out, whatever is wrong with them.

    Raises:
        OSError: it cannot be read.
    """
    found = DataSet()
    seen: dict[str, str] = {}
    for number, (where, row) in enumerate(_folders(path) if path.is_dir() else _lines(path), start=1):
        try:
            if isinstance(row, RowError):
                raise row
            if row_key(row, number) in exclude:
                continue
            read = read_row(row, defaults, number=number)
            if (before := seen.setdefault(read.key, where)) != where:
                raise RowError("instance_id", repr(read.key), f"another one: {before} has it already")
        except RowError as error:
            found.refused.append(f"{where}: {error}")
            if (key := row_key(row, number)) is not None:
                found.refused_keys.append(key)
        else:
            found.rows.append(read)
    return found


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as lines:
        number = 0
        while line := lines.readline(LONGEST_LINE_BYTES):
            number += 1
            where = f"{path}:{number}"
            if len(line) == LONGEST_LINE_BYTES and not line.endswith(b"\n"):
                yield where, RowError("row", "a longer line", f"at most {LONGEST_LINE_BYTES} bytes")
                while rest := lines.readline(LONGEST_LINE_BYTES):
                    if rest.endswith(b"\n"):
                        break
            elif line.strip():
                yield where, _parsed(line)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return RowError("row", f"no JSON ({error})", "a JSON object a line")


def _folders(path: Path) -> Iterator[tuple[str, Any]]:
    for folder in sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith(".")):
        try:
            yield str(folder), _task(folder)
        except RowError as error:
            yield str(folder), error


def _task(folder: Path) -> dict[str, Any]:
    """A folder's task as a row: ``instruction.md``, ``task.toml``, ``files/``, ``tests/``, ``solution/solve.sh``."""
    row: dict[str, Any] = {"instance_id": folder.name, **_settings(folder / "task.toml")}
    if (statement := _text(folder / "instruction.md")) is not None:
        row["problem_statement"] = statement
    if (solution := _text(folder / "solution" / "solve.sh")) is not None:
        row["solution"] = solution
    row["files"] = _tree(folder / "files")
    tests = _tree(folder / "tests")
    row["tests"] = {f"/tests/{path}": text for path, text in tests.items()}
    if "test.sh" in tests:
        row |= {"test_command": "sh /tests/test.sh", "reward_file": _REWARD}
        if "pytest" in tests["test.sh"]:
            row["test_command"] += "  # runs pytest"
    elif tests:
        row["test_command"] = f"{row.get('python', 'python3')} -m pytest -q /tests"
    return row


def _settings(path: Path) -> dict[str, Any]:
    """``image``, ``workdir``, ``setup`` and ``python`` of a task.toml, at its top or under ``environment``."""
    if not path.is_file():
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RowError(path.name, str(error), "TOML") from None
    inner = found.get("environment")
    found |= inner if isinstance(inner, dict) else {}
    names = ("image", "docker_image", "workdir", "setup", "python", "base_commit", "test_command")
    return {name: found[name] for name in names if name in found}


def _text(path: Path) -> str | None:
    if not path.is_file():
        return None
    if path.stat().st_size > LONGEST_PATCH_BYTES:
        raise RowError(path.name, f"{path.stat().st_size} bytes", f"at most {LONGEST_PATCH_BYTES}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise RowError(path.name, "bytes", "text in UTF-8") from None


def _tree(folder: Path) -> dict[str, str]:
    """The texts below a folder by their path in it; links are not followed."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_symlink():
            raise RowError(f"{folder.name}/{path.relative_to(folder)}", "a link", "a plain file")
        if (text := _text(path)) is not None:
            found[str(path.relative_to(folder))] = text
    return found
