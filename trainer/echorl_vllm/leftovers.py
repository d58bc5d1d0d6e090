"""What a killed engine leaves on its host, and its removal at the next start: shared memory and temporary files.

A running engine writes down its process and the shared-memory segments that its processes have mapped. Only those
are removed, only when that process is gone, and only if nobody else has them mapped. What stands in a copy of a work
folder is about the original's engine.
"""

import os
import shutil
from pathlib import Path

import msgspec

from echorl_core import segments
from echorl_vllm.environment import ENV_WORK, work_folder
from echorl_vllm.processes import descendants, start_time

TEMPORARY_FOLDER = "tmp"
_OWNER_FILE = "owner.json"


class EngineRunningError(RuntimeError):
    """Another engine uses this work folder."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who uses a work folder."""

    device: int
    inode: int
    """Of the work folder."""
    pid: int
    started: int
    """Clock ticks since boot."""
    segments: dict[str, int] = {}
    """Inodes of shared memory by name."""


def take_ownership(work: Path) -> None:
    """Write down that this process uses ``work``; it may become another program by exec."""
    _write(work, os.getpid(), {})


def record_segments() -> None:
    """Add the shared memory of this engine's processes to its work folder's record, if it has such a folder."""
    if os.environ.get(ENV_WORK):
        mine = os.getpid()
        _write(work_folder(), mine, segments.mapped_segments([mine, *descendants(mine)]))


def _write(work: Path, pid: int, mapped: dict[str, int]) -> None:
    folder = work.stat()
    owner = Owner(device=folder.st_dev, inode=folder.st_ino, pid=pid, started=start_time(pid) or 0, segments=mapped)
    temporary = work / f"{_OWNER_FILE}.{os.getpid()}"
    temporary.write_bytes(msgspec.json.encode(owner))
    temporary.replace(work / _OWNER_FILE)


def remove_leftovers(work: Path) -> list[str]:
    """Remove what a dead engine left in ``work`` and in shared memory; returns what was removed.

    Raises:
        EngineRunningError: the engine of this folder is alive.
    """
    owner = _owner(work)
    removed = []
    if owner is not None:
        if owner.pid != os.getpid() and start_time(owner.pid) == owner.started:
            raise EngineRunningError(f"{work}: in use by the engine with process id {owner.pid}")
        removed = [str(path) for path in segments.remove_unused(owner.segments)]
    elif not (work / _OWNER_FILE).exists():
        return []
    for name in (TEMPORARY_FOLDER, "spool"):
        if (work / name).exists():
            shutil.rmtree(work / name, ignore_errors=True)
            removed.append(str(work / name))
    (work / _OWNER_FILE).unlink(missing_ok=True)
    return removed


def _owner(work: Path) -> Owner | None:
    """Whose folder this is; None if nobody says, or what says so is damaged or about another folder."""
    try:
        owner = msgspec.json.decode((work / _OWNER_FILE).read_bytes(), type=Owner)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    folder = work.stat()
    return owner if (owner.device, owner.inode) == (folder.st_dev, folder.st_ino) else None
