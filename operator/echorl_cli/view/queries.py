"""Questions to the tables. Whatever a user chose is a parameter of a query, never part of its text."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from echorl_cli.records import Row

Point = tuple[int, float]
"""Step and value."""

_SEARCHED = 'episode, task_key, "group", error_kind, error'
ORDERS = {
    "newest": "step DESC, run, episode",
    "oldest": "step, run, episode",
    "best": "reward DESC NULLS LAST, step DESC, episode",
    "worst": "reward NULLS LAST, step DESC, episode",
    "longest": "seconds DESC NULLS LAST, episode",
}


@dataclass(frozen=True)
class Wanted:
    """Which episodes a user asks for; what is empty or None asks for all."""

    runs: tuple[int, ...] = ()
    kind: str = ""
    environment: str = ""
    stop: str = ""
    """Why it ended."""
    failed: bool | None = None
    error_class: str = ""
    """Of those that failed: infrastructure, harness, agent."""
    in_batch: bool | None = None
    reward_from: float | None = None
    reward_to: float | None = None
    step_from: int | None = None
    step_to: int | None = None
    text: str = ""
    """Part of the name of the episode, its task or its group, or of why it failed, in any case."""

    def condition(self) -> tuple[str, list[Any]]:
        """For a WHERE: its text and parameters."""
        asked: list[tuple[str, Any]] = [
            ("kind = ?", self.kind or None),
            ("environment = ?", self.environment or None),
            ("stop = ?", self.stop or None),
            ("(error_class IS NOT NULL) = ?", self.failed),
            ("error_class = ?", self.error_class or None),
            ("in_batch = ?", self.in_batch),
            ("reward >= ?", self.reward_from),
            ("reward <= ?", self.reward_to),
            ("step >= ?", self.step_from),
            ("step <= ?", self.step_to),
            ("list_contains(?::INTEGER[], run)", list(self.runs) or None),
            (f"contains(lower(concat_ws(' ', {_SEARCHED})), lower(?))", self.text or None),
        ]
        used = [(text, value) for text, value in asked if value is not None]
        return " AND ".join(text for text, _ in used) or "true", [value for _, value in used]


def _rows(tables: duckdb.DuckDBPyConnection, query: str, values: Sequence[Any] = ()) -> list[Row]:
    found = tables.execute(query, list(values))
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def episodes(
    tables: duckdb.DuckDBPyConnection, wanted: Wanted, *, order: str = "newest", limit: int = 100, offset: int = 0
) -> list[Row]:
    """Some of the episodes that are wanted, by one of ``ORDERS``."""
    condition, values = wanted.condition()
    query = f"SELECT * FROM episodes WHERE {condition} ORDER BY {ORDERS[order]} LIMIT ? OFFSET ?"
    return _rows(tables, query, [*values, limit, offset])


def totals(tables: duckdb.DuckDBPyConnection, wanted: Wanted) -> Row:
    """``episodes``, how many are wanted, and their mean ``reward``; None of none."""
    condition, values = wanted.condition()
    return _rows(tables, f"SELECT count(*) AS episodes, avg(reward) AS reward FROM episodes WHERE {condition}", values)[
        0
    ]


def histogram(tables: duckdb.DuckDBPyConnection, wanted: Wanted, column: str, bins: int = 20) -> list[Row]:
    """How many episodes have which ``reward`` or ``advantage``: ``low``, ``high`` and ``count`` of each bin.

    Bins are as wide as each other, from the least value to the largest; a single one where all are equal.
    """
    if column not in {"reward", "advantage"}:
        raise ValueError(column)
    condition, values = wanted.condition()
    query = f"""WITH v AS (SELECT {column} AS x FROM episodes WHERE {condition} AND isfinite({column})),
        b AS (SELECT min(x) AS low, max(x) AS high FROM v),
        n AS (SELECT CASE WHEN high > low THEN least(?, floor((x - low) / (high - low) * ?)) ELSE 0 END AS bin, low,
            CASE WHEN high > low THEN (high - low) / ? ELSE 0 END AS width FROM v, b)
        SELECT low + bin * width AS low, low + (bin + 1) * width AS high, count(*) AS count
        FROM n GROUP BY ALL ORDER BY 1"""
    return _rows(tables, query, [*values, bins - 1, bins, bins])


def choices(tables: duckdb.DuckDBPyConnection, column: str) -> list[str]:
    """Values of ``environment`` or ``stop`` that episodes have, in order."""
    if column not in {"environment", "stop"}:
        raise ValueError(column)
    query = f"SELECT DISTINCT {column} FROM episodes WHERE {column} IS NOT NULL ORDER BY 1"
    return [str(row[0]) for row in tables.execute(query).fetchall()]


def metric_names(tables: duckdb.DuckDBPyConnection) -> list[str]:
    """Names of all numbers that the newest steps of runs have."""
    query = """SELECT DISTINCT key FROM (
            SELECT unnest(json_keys(line)) AS key FROM steps_shown
            QUALIFY dense_rank() OVER (PARTITION BY run ORDER BY step DESC) <= 3)
        WHERE key NOT IN ('step', 'attempt', 'time') ORDER BY 1"""
    return [str(row[0]) for row in tables.execute(query).fetchall()]


def curves(
    tables: duckdb.DuckDBPyConnection, runs: Sequence[int], names: Sequence[str]
) -> dict[str, dict[int, list[Point]]]:
    """For each metric and run its points, by step; steps without a number are left out."""
    pointers = ["/" + name.replace("~", "~0").replace("/", "~1") for name in names]
    query = """SELECT run, step, json_extract_string(line, ?) FROM steps_shown
        WHERE list_contains(?::INTEGER[], run) ORDER BY run, step"""
    found: dict[str, dict[int, list[Point]]] = {name: {} for name in names}
    if not names:
        return found
    for run, step, values in tables.execute(query, [pointers, list(runs)]).fetchall():
        for name, text in zip(names, values, strict=True):
            if (value := _number(text)) is not None:
                found[name].setdefault(run, []).append((step, value))
    return found


def eval_environments(tables: duckdb.DuckDBPyConnection) -> list[str]:
    """Environments of evals that were played, in order."""
    found = tables.execute("SELECT DISTINCT environment FROM evals_shown WHERE environment IS NOT NULL ORDER BY 1")
    return [str(row[0]) for row in found.fetchall()]


def eval_curves(tables: duckdb.DuckDBPyConnection, runs: Sequence[int]) -> dict[str, dict[int, list[Point]]]:
    """For each eval environment and run the mean reward, by the version that made it due."""
    query = """SELECT environment, run, step, json_extract_string(line, '/reward') FROM evals_shown
        WHERE list_contains(?::INTEGER[], run) ORDER BY environment, run, step"""
    found: dict[str, dict[int, list[Point]]] = {}
    for environment, run, step, text in tables.execute(query, [list(runs)]).fetchall():
        if (value := _number(text)) is not None:
            found.setdefault(str(environment), {}).setdefault(run, []).append((step, value))
    return found


def step_metrics(tables: duckdb.DuckDBPyConnection, run: int, step: int) -> Row:
    """The line of a step; empty if there is none."""
    found = tables.execute("SELECT line FROM steps_shown WHERE run = ? AND step = ?", [run, step]).fetchone()
    return {} if found is None else dict(json.loads(found[0]))


def last_steps(tables: duckdb.DuckDBPyConnection) -> dict[int, Row]:
    """Of each run that has steps: ``run``, the newest ``step``, its ``attempt``, and its ``reward``."""
    query = """SELECT run, step, attempt, json_extract_string(line, '/reward~1all~1mean') AS reward FROM steps_shown
        QUALIFY row_number() OVER (PARTITION BY run ORDER BY step DESC) = 1"""
    return {row["run"]: {**row, "reward": _number(row["reward"])} for row in _rows(tables, query)}


def counted(tables: duckdb.DuckDBPyConnection) -> dict[int, int]:
    """How many episodes of each run are there to look at."""
    return dict(tables.execute("SELECT run, count(*) FROM episodes GROUP BY run").fetchall())


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
