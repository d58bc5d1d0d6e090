"""One episode whole: what the tables only name is read from its file."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from echorl_cli.records import Row
from echorl_cli.view.folders import ShownRun, is_own
from echorl_core.rundir import step_name
from echorl_core.tokens import NotTrainedTokens, TrainedSequence, read_trained

_JSON = ("state", "messages", "transcript", "conversations")
_MAPS = ("metrics", "rewards")
_LONGEST_LINE_BYTES = 256_000_000


@dataclass(frozen=True)
class Place:
    """Where an episode stands in a run."""

    kind: str
    attempt: int
    step: int
    episode: str


@dataclass(frozen=True)
class Branch:
    """One conversation of an episode."""

    number: int
    messages: list[Row]
    unused: str | None = None
    """Why its last turn does not train; None: it does."""


@dataclass(frozen=True)
class Episode:
    """What a run recorded of one episode."""

    row: Row
    """As the table of episodes has it."""
    branches: list[Branch]
    turns: list[Row]
    """With times; only ``episodes.jsonl`` has them."""
    info: Row
    transcript: list[Row]
    numbers: Row
    """``metrics`` and ``rewards``, by name."""
    notices: list[str] = field(default_factory=list)


def read_episode(tables: duckdb.DuckDBPyConnection, shown: ShownRun, place: Place) -> Episode | None:
    """The episode at a place; None if no record names it."""
    key = [shown.number, place.kind, place.attempt, place.step, place.episode]
    where = "run = ? AND kind = ? AND attempt = ? AND step = ? AND episode = ?"
    found = tables.execute(f"SELECT * FROM episodes WHERE {where}", key)
    names = [column[0] for column in found.description or ()]
    if (row := found.fetchone()) is None:
        return None
    about = dict(zip(names, row, strict=True))
    byte = tables.execute(f"SELECT byte FROM few WHERE {where} ORDER BY byte DESC", key).fetchone()
    notices: list[str] = []
    told: Row = {}
    path = _parquet(shown, place, str(about["environment"]))
    if path.exists() and is_own(shown.run.root, path):
        try:
            told = _from_parquet(tables, path, place.episode)
        except duckdb.Error as error:
            notices.append(f"{path}: {str(error).splitlines()[0]}")
    if byte is not None:
        try:
            told |= _from_line(shown.run.records(place.attempt) / "episodes.jsonl", byte[0])
        except (OSError, ValueError) as error:
            notices.append(f"episodes.jsonl: {error}")
    return _episode(about, told, notices)


def _parquet(shown: ShownRun, place: Place, environment: str) -> Path:
    if place.kind == "eval":
        return shown.run.eval_episodes(place.attempt, place.step, environment)
    return shown.run.episodes(place.attempt, place.step)


def _from_parquet(tables: duckdb.DuckDBPyConnection, path: Path, episode: str) -> Row:
    present = {row[0] for row in tables.execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(path)]).fetchall()}
    names = [name for name in (*_JSON, *_MAPS) if name in present]
    query = f"SELECT {', '.join(names) or 'NULL'} FROM read_parquet(?) WHERE episode = ?"
    row = tables.execute(query, [str(path), episode]).fetchone()
    told: Row = {} if row is None or not names else dict(zip(names, row, strict=True))
    told |= {name: json.loads(told[name]) for name in _JSON if told.get(name)}
    return {"info" if name == "state" else name: value for name, value in told.items() if value is not None}


def _from_line(path: Path, byte: int) -> Row:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        file.seek(byte)
        found = json.loads(file.readline(_LONGEST_LINE_BYTES))
    if not isinstance(found, dict):
        raise ValueError("the line is no record any more")
    return {name: value for name, value in found.items() if value is not None}


def _episode(about: Row, told: Row, notices: list[str]) -> Episode:
    conversations = _mappings(told.get("conversations"))
    branches = [_branch(place, one) for place, one in enumerate(conversations)]
    info = told.get("info")
    numbers = {
        name: value
        for group in _MAPS
        if isinstance(mapping := told.get(group), dict)
        for name, value in mapping.items()
    }
    return Episode(
        row=about,
        branches=branches or [Branch(0, _mappings(told.get("messages")))],
        turns=_mappings(told.get("turns")),
        info=info if isinstance(info, dict) else {},
        transcript=_mappings(told.get("transcript")),
        numbers=numbers,
        notices=notices,
    )


def _branch(place: int, one: Row) -> Branch:
    number, unused = one.get("branch"), one.get("unused")
    return Branch(
        number if isinstance(number, int) else place,
        _mappings(one.get("messages")),
        None if unused is None else str(unused),
    )


def _mappings(value: Any) -> list[Row]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def trained(shown: ShownRun, place: Place) -> Iterator[TrainedSequence]:
    """What the step trained of the episode, branch by branch; nothing where nothing was exported.

    Raises:
        NotTrainedTokens: a file is of another release, or cannot be read.
    """
    folder = shown.run.root / "tokens" / f"attempt_{place.attempt}"
    if not is_own(shown.run.root, folder) or not folder.is_dir():
        return
    for path in sorted(folder.glob(f"{step_name(place.step)}.rank_*.jsonl")):
        if path.is_symlink():
            continue
        try:
            yield from read_trained(path, place.episode)
        except OSError as error:
            raise NotTrainedTokens(f"{path}: {error.strerror or error}") from None
