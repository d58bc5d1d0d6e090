"""One supervisor per run directory."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = ".lock"


class Locked(Exception):
    """Another supervisor works in the directory."""


@contextmanager
def held(root: Path) -> Iterator[None]:
    """Hold ``root/.lock``; the kernel lets go of it when this process ends, however it ends.

    Raises:
        Locked: names the process that holds it.
    """
    root.mkdir(parents=True, exist_ok=True)
    path = root / NAME
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise Locked(f"{root}: another `echorl run` (pid {holder}) works in this directory") from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
