"""Shared memory that a role's libraries make under ``/dev/shm``, told apart from whatever else lies there.

A mapped file there need not be a segment: a user may keep a model or a run's folder in memory. A segment counts by its
name, which a library gave it, and by its inode, so that a later file of the same name is left alone.
"""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108 - Linux's place for POSIX shared memory
_NAMES = re.compile(r"(psm_|torch_|nccl-|sem\.|vllm|cuda\.|gloo|__KMP_REGISTERED_LIB_)[A-Za-z0-9_.+-]*")
"""As Python's multiprocessing, torch, NCCL, glibc, vLLM, CUDA, Gloo and OpenMP begin them."""


def mapped_segments(pids: Iterable[int]) -> dict[str, int]:
    """Inodes, by name, of the segments that processes have mapped."""
    inodes = mapped_inodes(pids)
    segments = {}
    for entry in os.scandir(FOLDER) if inodes else ():
        # By name of the mapping a semaphore would not be found: its mapping was made under another one.
        if entry.inode() in inodes and _NAMES.fullmatch(entry.name):
            segments[entry.name] = entry.inode()
    return segments


def mapped_inodes(pids: Iterable[int]) -> set[int]:
    """Inodes of everything under ``/dev/shm`` that processes have mapped."""
    inodes = set()
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        except OSError:
            continue
        inodes |= {int(line.split(maxsplit=5)[4]) for line in maps.splitlines() if f" {FOLDER}/" in line}
    return inodes


def remove_unused(segments: Mapping[str, int]) -> list[Path]:
    """Remove segments that no living process has mapped; returns those removed.

    Args:
        segments: inodes by name. One that is no library's, another user's or another file by now is left alone.
    """
    mine = [path for name, inode in sorted(segments.items()) if (path := _same(name, inode)) is not None]
    in_use = (
        mapped_inodes(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()) if mine else set()
    )
    removed = []
    for path in mine:
        try:
            if path.lstat().st_ino in in_use:
                continue
            path.unlink()
        except OSError:
            continue
        removed.append(path)
    return removed


def _same(name: str, inode: int) -> Path | None:
    if not _NAMES.fullmatch(name):
        return None
    path = FOLDER / name
    try:
        status = path.lstat()
    except OSError:
        return None
    is_it = stat.S_ISREG(status.st_mode) and status.st_ino == inode and status.st_uid == os.geteuid()
    return path if is_it else None
