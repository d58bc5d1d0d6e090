"""``.processes.json``: what a supervisor started, for the one that comes after it was killed.

The file says which folder it was written in and by whom: a copy of the folder names processes of the original, which
are none of its business.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from echorl_cli.local import proctable
from echorl_cli.local.lock import Locked
from echorl_cli.local.proctable import Stat
from echorl_core import segments
from echorl_core.capped import MAX_JSON_BYTES, read_capped
from echorl_core.rundir import write_file

_NAME = ".processes.json"
_LONGEST_MARK = 64


@dataclass(frozen=True)
class Notes:
    """One supervisor's processes."""

    mark: str
    processes: dict[int, int]
    """Start times by pid."""
    shared_memory: dict[str, int]
    """Inodes of segments by name."""


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    """Notes as they stand in the file."""

    device: int
    inode: int
    """Of the folder that they are about."""
    path: str
    """Where it was; for people."""
    boot: str
    """Within which process ids and start times mean something."""
    supervisor: int
    supervisor_started: int
    mark: str
    processes: dict[int, int]
    shared_memory: dict[str, int]


@dataclass(frozen=True)
class Leftovers:
    """What a killed supervisor had left, after the next one has cleaned up."""

    ended: list[Stat] = field(default_factory=list)
    residual: list[Stat] = field(default_factory=list)
    """Processes that could not be ended."""
    shared_memory: list[Path] = field(default_factory=list)
    """Segments under ``/dev/shm`` that were removed."""
    copied_from: str | None = None
    """The folder that the notes are about, where it is another one; nothing was ended then."""


def write_notes(root: Path, notes: Notes) -> None:
    """Replace the notes of this supervisor in ``root``."""
    folder, stat = root.stat(), proctable.stat_of(os.getpid())
    written = _Written(
        device=folder.st_dev,
        inode=folder.st_ino,
        path=str(root.resolve()),
        boot=proctable.boot_id(),
        supervisor=os.getpid(),
        supervisor_started=0 if stat is None else stat.started,
        mark=notes.mark,
        processes=notes.processes,
        shared_memory=notes.shared_memory,
    )
    write_file(root / _NAME, msgspec.json.encode(written))


def forget(root: Path) -> None:
    """Remove the notes: nothing is left."""
    (root / _NAME).unlink(missing_ok=True)


def end_leftovers(root: Path, *, grace_s: float) -> Leftovers | None:
    """End the processes that ``.processes.json`` names; blocks. None if there are no notes.

    The caller holds the folder's lock. Nothing is ended by notes of another folder, or of another boot or container.
    A process counts only if its start time or its mark is the noted one.

    Raises:
        Locked: the supervisor that wrote them lives, though its lock is gone.
        OSError: they cannot be read or removed.
    """
    try:
        notes = msgspec.json.decode(read_capped(root / _NAME, MAX_JSON_BYTES), type=_Written, strict=True)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        forget(root)
        return Leftovers()
    folder = root.stat()
    if (notes.device, notes.inode) != (folder.st_dev, folder.st_ino):
        forget(root)
        return Leftovers(copied_from=notes.path)
    if notes.boot != proctable.boot_id() or not 0 < len(notes.mark) <= _LONGEST_MARK:
        forget(root)
        return Leftovers()
    if notes.supervisor != os.getpid() and proctable.is_alive(notes.supervisor, notes.supervisor_started):
        raise Locked(f"{root}: another `echorl run` (pid {notes.supervisor}) works in this directory")
    mark = f"{notes.mark}."
    ended = proctable.end_all(mark, notes.processes, grace_s=grace_s, strict=True)
    residual = proctable.ours(mark, notes.processes, strict=True)
    removed = segments.remove_unused(notes.shared_memory)
    if not residual:
        forget(root)
    return Leftovers(ended, residual, removed)
