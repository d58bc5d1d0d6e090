"""One supervisor per run directory."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = ".lock"
_LONGEST_HOLDER = 32


class Locked(Exception):
    """Another supervisor works in the directory, or its lock is none of ours."""


@contextmanager
def held(root: Path) -> Iterator[None]:
    """Hold ``root/.lock``; the kernel lets go of it when this process ends, however it ends.

    Raises:
        Locked: names the process that holds it, or what stands in the lock's place.
        OSError: the folder or the lock cannot be made.
    """
    root.mkdir(parents=True, exist_ok=True)
    path = root / NAME
    while True:
        handle = _opened(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(handle, _LONGEST_HOLDER, 0).decode(errors="replace").strip()
            os.close(handle)
            raise Locked(f"{root}: another `echorl run` (pid {holder or 'unknown'}) works in this directory") from error
        if _is_same(handle, path):
            break
        os.close(handle)  # whoever held it before has removed it meanwhile
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _opened(path: Path) -> int:
    # A link would have us empty the file that it leads to; a FIFO would have us wait.
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO} and os.path.lexists(path):
            raise Locked(f"{path}: found something that is no file; accepted: a plain file, or none") from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise Locked(f"{path}: found something that is no file; accepted: a plain file, or none")
    return handle


def _is_same(handle: int, path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(status, os.fstat(handle))
