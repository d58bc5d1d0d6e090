"""The tables that a page asks: DuckDB in memory, which may read the runs' folders and nothing else.

steps, evals   their lines of JSON as they were written, and at which byte of the file each stands
few            episodes of ``episodes.jsonl``, with the byte of each
whole          episodes of Parquet files
files          Parquet files that were taken in
lasts          the last step of each attempt that counts: what a later attempt did again is void
episodes       a view: episodes that count, each once: of Parquet files where there are some, else of JSON lines
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import duckdb


class Column(NamedTuple):
    """A column of ``episodes``, and where it is found."""

    name: str
    sql_type: str
    pointer: str
    """In a line of ``episodes.jsonl``."""
    parquet: str
    """In a Parquet file: an expression over ``needs``."""
    needs: str
    """The file's own column; null where a file of another release has none."""


def _column(name: str, sql_type: str, pointer: str = "", parquet: str = "", needs: str = "") -> Column:
    own = needs or name
    return Column(name, sql_type, pointer or f"/{name}", parquet or f'"{own}"', own)


COLUMNS = (
    _column("kind", "VARCHAR"),
    _column("step", "BIGINT"),
    _column("episode", "VARCHAR"),
    _column("environment", "VARCHAR"),
    _column("reward", "DOUBLE"),
    _column("stop", "VARCHAR"),
    _column("task_key", "VARCHAR"),
    _column("group", "VARCHAR"),
    _column("in_batch", "BOOLEAN"),
    _column("advantage", "DOUBLE"),
    _column("staleness", "BIGINT"),
    _column("filters", "VARCHAR", parquet="array_to_string(filters, ', ')"),
    _column("trains_rl", "BOOLEAN", "/trains/rl"),
    _column("trains_ce", "BOOLEAN", "/trains/ce"),
    _column("turns", "BIGINT", "/num_turns"),
    _column("sampled_tokens", "BIGINT"),
    _column("branches", "BIGINT"),
    _column("seconds", "DOUBLE"),
    _column("error_class", "VARCHAR"),
    _column("error_kind", "VARCHAR"),
    _column("error", "VARCHAR"),
    _column("phase", "VARCHAR"),
)
REQUIRED = frozenset({"kind", "step", "episode", "environment", "reward", "stop"})
"""Columns without which a file is none of episodes."""

_NAMES = ", ".join(f'"{one.name}"' for one in COLUMNS)
_TYPED = ", ".join(f'"{one.name}" {one.sql_type}' for one in COLUMNS)
_SCHEMA = f"""
CREATE TABLE steps(run INTEGER, attempt INTEGER, step BIGINT, line VARCHAR, byte BIGINT);
CREATE TABLE evals(run INTEGER, attempt INTEGER, step BIGINT, environment VARCHAR, line VARCHAR, byte BIGINT);
CREATE TABLE few(run INTEGER, attempt INTEGER, {_TYPED}, byte BIGINT);
CREATE TABLE whole(run INTEGER, attempt INTEGER, {_TYPED});
CREATE TABLE files(run INTEGER, attempt INTEGER, kind VARCHAR, step BIGINT, environment VARCHAR);
CREATE TABLE lasts(run INTEGER, attempt INTEGER, last BIGINT);
CREATE VIEW episodes AS
    SELECT run, attempt, {_NAMES} FROM whole JOIN lasts USING (run, attempt) WHERE step <= last
    UNION ALL
    SELECT run, attempt, {_NAMES} FROM few JOIN lasts USING (run, attempt)
    WHERE step <= last AND NOT EXISTS (
        SELECT 1 FROM files WHERE files.run = few.run AND files.attempt = few.attempt AND files.kind = few.kind
        AND files.step = few.step AND files.environment IN ('', few.environment))
    QUALIFY row_number() OVER (PARTITION BY run, kind, step, episode ORDER BY attempt DESC, byte DESC) = 1;
CREATE VIEW steps_shown AS
    SELECT run, attempt, step, line FROM steps JOIN lasts USING (run, attempt) WHERE step <= last
    QUALIFY row_number() OVER (PARTITION BY run, step ORDER BY attempt DESC, byte DESC) = 1;
CREATE VIEW evals_shown AS
    SELECT run, attempt, step, environment, line FROM evals JOIN lasts USING (run, attempt)
    WHERE step <= last AND NOT json_exists(line, '$.skipped')
    QUALIFY row_number() OVER (PARTITION BY run, step, environment ORDER BY attempt DESC, byte DESC) = 1;
"""


def opened(folders: Iterable[Path]) -> duckdb.DuckDBPyConnection:
    """Empty tables; the connection reads files below ``folders`` alone, and loads nothing from a network.

    Each thread works with a ``cursor()`` of its own.
    """
    made = duckdb.connect(":memory:")
    allowed = ", ".join("'{}'".format(str(path).replace("'", "''")) for path in folders)
    for setting in (
        "autoload_known_extensions = false",
        "autoinstall_known_extensions = false",
        "temp_directory = ''",
        "preserve_insertion_order = false",
        f"allowed_directories = [{allowed}]",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        made.execute(f"SET {setting}")
    made.execute(_SCHEMA)
    return made
