"""Takes into the tables what runs have written since the last look."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb

from echorl_cli.records import DamagedRecords, attempt_starts, own_attempts
from echorl_cli.view.folders import ShownRun, is_own
from echorl_cli.view.tables import COLUMNS, REQUIRED
from echorl_cli.view.tail import Lines, Tail

FIRST_FILES, MORE_FILES = 32, 500
"""Parquet files that are taken in together, the newest first: a page shows them soon, the rest costs less in bulk."""
_NO_LAST = 2**62
_TRAIN = re.compile(r"step_(\d+)\.parquet")
_EVAL = re.compile(r"step_(\d+)\.(.+)\.parquet")

_POINTERS = {
    "steps": ["/step"],
    "evals": ["/step", "/environment"],
    "episodes": [column.pointer for column in COLUMNS],
}
_TABLE = {"steps": "steps", "evals": "evals", "episodes": "few"}
_CASTS = (
    f"translate(v[{place}], '[]\"', '')" if one.name == "filters" else f"TRY_CAST(v[{place}] AS {one.sql_type})"
    for place, one in enumerate(COLUMNS, start=1)
)
_VALUES = {
    "steps": "TRY_CAST(v[1] AS BIGINT), line, byte",
    "evals": "TRY_CAST(v[1] AS BIGINT), v[2], line, byte",
    "episodes": ", ".join((*_CASTS, "byte")),
}
_NAMED = [place for place, column in enumerate(COLUMNS, start=1) if column.name in {"kind", "episode"}]
_STEP = next(place for place, column in enumerate(COLUMNS, start=1) if column.name == "step")
_GOOD = {
    "steps": "TRY_CAST(v[1] AS BIGINT) IS NOT NULL",
    "evals": "TRY_CAST(v[1] AS BIGINT) IS NOT NULL",
    "episodes": " AND ".join(
        [f"TRY_CAST(v[{_STEP}] AS BIGINT) IS NOT NULL", *(f"v[{place}] IS NOT NULL" for place in _NAMED)]
    ),
}
"""What makes a line a record."""


@dataclass(frozen=True)
class ParquetFile:
    """A file of episodes, by what its path says."""

    path: Path
    attempt: int
    kind: str
    step: int
    environment: str
    """Of an eval's file; empty: a step's, with all environments."""


class Intake:
    """Of one run."""

    def __init__(self, shown: ShownRun, tables: duckdb.DuckDBPyConnection) -> None:
        """``tables``: a cursor that nobody else uses."""
        self._shown, self._root, self._tables = shown, shown.run.root, tables
        self._tails: dict[Path, Tail] = {}
        self._taken: set[Path] = set()
        self._starts: dict[int, int] = {}
        self.notices: dict[str, str] = {}
        """What cannot be shown, by file, for people."""
        self.waiting = 0
        """Parquet files that are there and not taken in."""

    def take(self) -> bool:
        """Take in all new lines up to a few megabytes a file, and some Parquet files; tells whether there was anything.

        Whatever cannot be read is noted in ``notices``.
        """
        try:
            attempts = self._attempts()
        except DamagedRecords as error:
            self.notices["run"] = str(error)
            return False
        found = [self._take_lines(attempt, folder, name) for attempt, folder in attempts for name in _TABLE]
        found.append(self._take_files([one for attempt, folder in attempts for one in _files(attempt, folder)]))
        if any(found):
            self._count(attempts)
        return any(found)

    def _attempts(self) -> list[tuple[int, Path]]:
        found = own_attempts(self._shown.run)
        for _, folder in found:
            if not is_own(self._root, folder):
                self.notices[str(folder)] = f"{folder}: found a link, which is not followed"
        own = [(attempt, folder) for attempt, folder in found if is_own(self._root, folder)]
        self._starts = attempt_starts(self._shown.run) if is_own(self._root, self._root / "attempts") else {}
        return own

    def _take_lines(self, attempt: int, folder: Path, name: str) -> bool:
        path = folder / f"{name}.jsonl"
        try:
            lines = self._tails.setdefault(path, Tail(path)).read()
        except OSError as error:
            self.notices[str(path)] = f"{path}: {error.strerror or error}"
            return False
        table = _TABLE[name]
        if lines.anew:
            place = [self._shown.number, attempt]
            self._tables.execute(f"DELETE FROM {table} WHERE run = ? AND attempt = ?", place)
        if not lines.texts:
            return lines.anew
        self._insert(name, attempt, lines)
        return True

    def _insert(self, name: str, attempt: int, lines: Lines) -> None:
        arguments = {
            "run": self._shown.number,
            "attempt": attempt,
            "lines": lines.texts,
            "bytes": lines.starts,
            "pointers": _POINTERS[name],
        }
        # json_valid stands in a CASE: DuckDB may look into a line before a WHERE has left it out.
        source = """(SELECT line, byte, json_extract_string(CASE WHEN json_valid(line) THEN line END, $pointers) AS v
            FROM (SELECT unnest($lines::VARCHAR[]) AS line, unnest($bytes::BIGINT[]) AS byte))"""
        good = _GOOD[name]
        into = f"INSERT INTO {_TABLE[name]} SELECT $run, $attempt, {_VALUES[name]} FROM {source} WHERE {good}"
        taken = self._tables.execute(into, arguments).fetchone()
        if taken == (len(lines.texts),):
            return
        del arguments["run"], arguments["attempt"]
        bad = self._tables.execute(
            f"SELECT count(*), min(byte) FROM {source} WHERE NOT coalesce({good}, false)",
            arguments,
        ).fetchone()
        if bad is not None and bad[0]:
            path = self._shown.run.records(attempt) / f"{name}.jsonl"
            number = lines.first_number + lines.starts.index(bad[1])
            more = f" and {bad[0] - 1} more" if bad[0] > 1 else ""
            self.notices[str(path)] = (
                f"{path}: found no record in line {number}{more}; accepted: records as EchoRL writes them"
            )

    def _take_files(self, found: list[ParquetFile]) -> bool:
        new = sorted((one for one in found if one.path not in self._taken), key=lambda one: -one.step)
        batch = new[: MORE_FILES if self._taken else FIRST_FILES]
        self.waiting = len(new) - len(batch)
        for attempt in {one.attempt for one in batch}:
            files = [one for one in batch if one.attempt == attempt]
            try:
                self._read(attempt, files)
            except duckdb.Error:
                self._read_each(attempt, files)
        self._taken.update(one.path for one in batch)
        return bool(batch)

    def _read(self, attempt: int, files: list[ParquetFile], present: frozenset[str] | None = None) -> None:
        values = ", ".join(
            column.parquet if present is None or column.needs in present else "NULL" for column in COLUMNS
        )
        self._tables.execute("BEGIN")
        try:
            into = f"INSERT INTO whole SELECT ?, ?, {values} FROM read_parquet(?)"
            self._tables.execute(into, [self._shown.number, attempt, [str(one.path) for one in files]])
            places = [[one.kind for one in files], [one.step for one in files], [one.environment for one in files]]
            into = "INSERT INTO files SELECT ?, ?, unnest(?::VARCHAR[]), unnest(?::BIGINT[]), unnest(?::VARCHAR[])"
            self._tables.execute(into, [self._shown.number, attempt, *places])
        except duckdb.Error:
            self._tables.execute("ROLLBACK")
            raise
        self._tables.execute("COMMIT")

    def _read_each(self, attempt: int, files: list[ParquetFile]) -> None:
        """One by one: a file may be damaged, or of a release that had other columns."""
        for one in files:
            try:
                rows = self._tables.execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(one.path)]).fetchall()
                present = frozenset(str(row[0]) for row in rows)
                if lacking := sorted(REQUIRED - present):
                    self.notices[str(one.path)] = (
                        f"{one.path}: found no column {', '.join(lacking)}; accepted: episodes as EchoRL records them"
                    )
                    continue
                self._read(attempt, [one], present)
            except duckdb.Error as error:
                told = str(error).splitlines()[0]
                self.notices[str(one.path)] = (
                    f"{one.path}: found no episodes ({told}); accepted: a Parquet file of them"
                )

    def _count(self, attempts: list[tuple[int, Path]]) -> None:
        """Note the last step of each attempt that counts; where no file tells a start, the first step does."""
        starts: dict[int, int] = dict(
            self._tables.execute(
                "SELECT attempt, min(step) FROM steps WHERE run = ? GROUP BY attempt", [self._shown.number]
            ).fetchall()
        )
        starts |= self._starts
        lasts = [
            (min((start - 1 for later, start in starts.items() if later > attempt), default=_NO_LAST), attempt)
            for attempt, _ in attempts
        ]
        known = self._tables.execute("SELECT last, attempt FROM lasts WHERE run = ?", [self._shown.number]).fetchall()
        if sorted(known) == sorted(lasts):
            return
        self._tables.execute("BEGIN")
        self._tables.execute("DELETE FROM lasts WHERE run = ?", [self._shown.number])
        rows = [[self._shown.number, attempt, last] for last, attempt in lasts]
        self._tables.executemany("INSERT INTO lasts VALUES (?, ?, ?)", rows)
        self._tables.execute("COMMIT")


def _files(attempt: int, folder: Path) -> Iterator[ParquetFile]:
    """Parquet files of an attempt that are no links, in folders that are none."""
    for name, pattern, kind in (("episodes", _TRAIN, "train"), ("eval_episodes", _EVAL, "eval")):
        below = folder / name
        if below.is_symlink() or not below.is_dir():
            continue
        with os.scandir(below) as entries:
            for entry in entries:
                match = pattern.fullmatch(entry.name)
                if match and entry.is_file(follow_symlinks=False):
                    environment = match[2] if kind == "eval" else ""
                    yield ParquetFile(Path(entry.path), attempt, kind, int(match[1]), environment)
