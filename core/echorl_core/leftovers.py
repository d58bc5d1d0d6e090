"""What an older attempt left in a run directory and nobody may read: found, removed, or moved aside."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from echorl_core.checkpoints import MANIFEST_NAME
from echorl_core.rundir import TEMPORARY_PREFIX, RunDirectory, sync_folder

ARCHIVE = "archive"
STOP_MARKERS = ("stop", "STOP", "control")
"""Files or folders in a run directory that would tell a role to stop."""
SPOOLS = ("spool",)
_SUPERVISORS = (f"{TEMPORARY_PREFIX}.", f"{TEMPORARY_PREFIX}state.json.")
"""How temporaries of a living supervisor's notes and state begin."""


def remove_leftovers(run: RunDirectory) -> list[str]:
    """Remove every leftover; returns their paths relative to the run directory, sorted.

    Raises:
        OSError: one cannot be removed.
    """
    removed: list[str] = []
    parents: set[Path] = set()
    for path in sorted(_leftovers(run)):
        if not os.path.lexists(path):
            continue  # went with its folder
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        removed.append(str(path.relative_to(run.root)))
        parents.add(path.parent)
    for parent in parents:
        if parent.is_dir():
            sync_folder(parent)
    return removed


def _leftovers(run: RunDirectory) -> Iterator[Path]:
    # Whatever is sealed or published belongs to an older attempt: this one has not begun. Checkpoints hold all
    # that batches up to the resume step were for, and later ones are made anew.
    for folder in (run.batches, run.broadcasts):
        if folder.is_dir():
            yield from folder.iterdir()
    yield from (run.root / name for name in (*STOP_MARKERS, *SPOOLS) if os.path.lexists(run.root / name))
    for _, folder in run.checkpoint_steps():
        if not os.path.lexists(folder / MANIFEST_NAME):
            yield folder
    for current, folders, files in os.walk(run.root):
        # A supervisor's files stand in the root, and it may be writing one right now.
        living = _SUPERVISORS if Path(current) == run.root else ()
        if living and ARCHIVE in folders:
            folders.remove(ARCHIVE)
        for name in (*folders, *files):
            if name.startswith(TEMPORARY_PREFIX) and not name.startswith(living):
                yield Path(current, name)


def archive(run: RunDirectory, owner: str, *, keep_attempt: int | None = None) -> Path:
    """Move everything of an older run to ``archive/<owner>``; returns that folder.

    Dot files of the root (a supervisor's lock and notes) and the folder of attempt ``keep_attempt`` stay.
    Interrupted, it goes on at the next call: checkpoints and ``run.json`` move last.

    Raises:
        OSError: an entry cannot be moved.
    """
    moving = [path for path in run.root.iterdir() if path.name != ARCHIVE and not path.name.startswith(".")]
    last = (run.checkpoints, run.identity_file)
    moving.sort(key=lambda path: (last.index(path) + 1 if path in last else 0, path.name))
    kept = None if keep_attempt is None else run.attempt(keep_attempt)
    target = _room_for(run, owner, {path.name for path in moving} - {"attempts"})
    target.mkdir(parents=True, exist_ok=True)
    for path in moving:
        if kept is not None and kept.parent == path:
            _move_children(path, target / path.name, kept)
        else:
            path.rename(target / path.name)
    sync_folder(target)
    sync_folder(run.root)
    return target


def _move_children(folder: Path, target: Path, kept: Path) -> None:
    target.mkdir(exist_ok=True)
    for child in folder.iterdir():
        if child != kept:
            child.rename(target / child.name)


def _room_for(run: RunDirectory, owner: str, names: set[str]) -> Path:
    """The first archive folder of ``owner`` that holds none of these names yet."""
    number = 1
    while True:
        target = run.root / ARCHIVE / (owner if number == 1 else f"{owner}.{number}")
        if not any((target / name).exists() for name in names):
            return target
        number += 1
