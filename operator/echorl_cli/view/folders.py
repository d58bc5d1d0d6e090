"""Which runs are shown, and by what names; no file of theirs is read through a link."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from echorl_cli.records import DamagedRecords, Row, name_of, read_json
from echorl_core.rundir import RunDirectory

DEFAULT = Path("runs")
"""Where ``echorl run`` makes them."""
_ACCEPTED = "the directory of a run, or a copy of one"


class NoRuns(Exception):
    """What the user named cannot be shown; the message is for the user."""


@dataclass(frozen=True)
class ShownRun:
    """A run that the page shows."""

    number: int
    """Its place among those that were named; the tables know it by this."""
    label: str
    """Its name; with its folder where two runs have one name."""
    run: RunDirectory

    @property
    def state(self) -> Row:
        """What a supervisor noted last; empty in a copy of a run from a cluster, or while it is unreadable."""
        path = self.run.root / "state.json"
        try:
            return read_json(path) if is_own(self.run.root, path) else {}
        except DamagedRecords:
            return {}


def is_own(root: Path, path: Path) -> bool:
    """Whether ``path`` lies in the run's folder and no part of it below ``root`` is a link."""
    if ".." in path.parts or root not in path.parents:
        return False
    return not any(part.is_symlink() for part in (path, *path.parents) if root in part.parents)


def shown_runs(named: Sequence[Path]) -> list[ShownRun]:
    """The runs in the folders that were named; in none: every run below ``runs/``.

    Raises:
        NoRuns: a folder is none of a run's, or named twice, or there is none at all.
    """
    roots = [path.absolute() for path in named] or _below(DEFAULT)
    # Unlike Path.resolve it leaves a link that leads to itself, which is no run, as it is.
    real = [os.path.realpath(root) for root in roots]
    for place, root in enumerate(roots):
        if real[place] in real[:place]:
            raise NoRuns(f"found {root} twice; accepted: each run once")
        if not _is_run(root):
            raise NoRuns(f"{root}: found no records of a run; accepted: {_ACCEPTED}")
    names = [_name(root) for root in roots]
    several = {name for name, count in Counter(names).items() if count > 1}
    return [
        ShownRun(number, f"{name} ({root})" if name in several else name, RunDirectory(root))
        for number, (name, root) in enumerate(zip(names, roots, strict=True))
    ]


def _below(folder: Path) -> list[Path]:
    try:
        found = sorted(path.absolute() for path in folder.iterdir() if path.is_dir() and _is_run(path))
    except OSError:
        found = []
    if not found:
        raise NoRuns(f"found no run below {folder.absolute()}; accepted: echorl view RUN_DIR...")
    return found


def _is_run(root: Path) -> bool:
    try:
        return any((root / name).exists() for name in ("run.json", "records", "attempts"))
    except OSError as error:
        raise NoRuns(f"{root}: {error.strerror}; accepted: {_ACCEPTED}") from None


def _name(root: Path) -> str:
    try:
        return name_of(root) if is_own(root, root / "run.json") else root.name
    except DamagedRecords as error:
        raise NoRuns(str(error)) from None
