"""What a killed engine leaves on its host, and its removal at the next start: shared memory and temporary files.

A running engine writes down its process and the shared-memory segments that its processes have mapped. Only those
are removed, only when that process is gone, and only if nobody else has them mapped.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from echorl_vllm.environment import ENV_WORK, work_folder
from echorl_vllm.processes import descendants, start_time

TEMPORARY_FOLDER = "tmp"
_OWNER_FILE = "owner.json"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - Linux's place for POSIX shared memory


class EngineRunningError(RuntimeError):
    """Another engine uses this work folder."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who uses a work folder."""

    pid: int
    started: int
    """Clock ticks since boot."""
    segments: list[str] = []
    """Names under /dev/shm."""


def _mapped_inodes(pids: Iterable[int]) -> set[int]:
    """Inodes of the shared memory that processes have mapped.

    By name a semaphore would not be found: its mapping was made under another one.
    """
    found = set()
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        except OSError:
            continue
        found |= {int(line.split(maxsplit=5)[4]) for line in maps.splitlines() if f" {_SHARED_MEMORY}/" in line}
    return found


def _segments(inodes: set[int]) -> list[str]:
    names = []
    for path in _SHARED_MEMORY.iterdir():
        try:
            if path.stat().st_ino in inodes:
                names.append(path.name)
        except FileNotFoundError:
            continue
    return sorted(names)


def take_ownership(work: Path) -> None:
    """Write down that this process uses ``work``; it may become another program by exec."""
    _write(work, Owner(pid=os.getpid(), started=start_time(os.getpid()) or 0))


def record_segments() -> None:
    """Add the shared memory of this engine's processes to its work folder's record, if it has such a folder."""
    if os.environ.get(ENV_WORK):
        mine = os.getpid()
        segments = _segments(_mapped_inodes([mine, *descendants(mine)]))
        _write(work_folder(), Owner(pid=mine, started=start_time(mine) or 0, segments=segments))


def _write(work: Path, owner: Owner) -> None:
    temporary = work / f"{_OWNER_FILE}.{os.getpid()}"
    temporary.write_bytes(msgspec.json.encode(owner))
    temporary.replace(work / _OWNER_FILE)


def remove_leftovers(work: Path) -> list[str]:
    """Remove what a dead engine left in ``work`` and in shared memory; returns what was removed.

    Raises:
        EngineRunningError: the engine of this folder is alive.
    """
    try:
        owner = msgspec.json.decode((work / _OWNER_FILE).read_bytes(), type=Owner)
    except FileNotFoundError:
        return []
    if owner.pid != os.getpid() and start_time(owner.pid) == owner.started:
        raise EngineRunningError(f"{work}: in use by the engine with process id {owner.pid}")
    in_use = _segments(_mapped_inodes(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()))
    removed = [name for name in owner.segments if name not in in_use and (_SHARED_MEMORY / name).is_file()]
    for name in removed:
        (_SHARED_MEMORY / name).unlink(missing_ok=True)
    removed = [f"{_SHARED_MEMORY}/{name}" for name in removed]
    for name in (TEMPORARY_FOLDER, "spool"):
        if (work / name).exists():
            shutil.rmtree(work / name, ignore_errors=True)
            removed.append(str(work / name))
    (work / _OWNER_FILE).unlink(missing_ok=True)
    return removed
