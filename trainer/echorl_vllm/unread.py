"""Whether a file's memory may be used again: whether any process, on whatever way, still reads what it holds."""

import fcntl
import signal
from io import FileIO
from pathlib import Path

import torch


def is_unread(file: Path) -> bool:
    """Whether no process has the file open or mapped; the caller sees to it that none opens it meanwhile.

    Linux tells by whether it gives a lease for writing. Where it has none, or, as some layered file systems, does not
    count mappings, which is found out with one of our own, the answer is no.
    """
    try:
        with file.open("r+b", buffering=0) as held:
            mapped = torch.from_file(str(file), shared=False, size=1, dtype=torch.uint8)
            if _has_lease(held):
                return False
            del mapped
            return _has_lease(held)
    except (OSError, RuntimeError):
        return False


def _has_lease(held: FileIO) -> bool:
    """Whether there is a lease; it is given back at once."""
    # In place of SIGIO, which ends a process: for whoever, against the agreement, opens the file just now.
    fcntl.fcntl(held, fcntl.F_SETSIG, signal.SIGURG)
    try:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True
