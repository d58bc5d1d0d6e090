"""How workers tell their API server that staging has ended: a byte through a pipe with a name in the engine's folder.

A call to the workers interrupts generation, so the server asks them when it heard something, not now and then.
"""

import asyncio
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

# Below vLLM's logger, so that its handler and format are used.
log = logging.getLogger("vllm.echorl.bell")


def ring(path: Path) -> None:
    """Tell whoever listens; nothing happens if nobody does, or if enough bytes wait already."""
    with suppress(OSError):
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, b"\n")
        finally:
            os.close(pipe)


class Bell:
    """The listening end, of one event loop, from the first time that it is asked to listen."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pipe: int | None = None
        self._rung = asyncio.Event()

    def listen(self) -> asyncio.Event:
        """An event that is set when the bell rings from now on; where there can be no pipe, it never does."""
        if self._pipe is None:
            try:
                self._pipe = self._opened()
            except OSError as error:
                log.warning("%s: the end of staging is noticed late, as no pipe can be made: %s", self._path, error)
            else:
                asyncio.get_running_loop().add_reader(self._pipe, self._hear, self._pipe)
        return self._rung

    def _opened(self) -> int:
        if not (self._path.exists() and stat.S_ISFIFO(self._path.stat().st_mode)):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
            os.mkfifo(self._path, 0o600)
        # For writing as well, so that there is never a last writer whose leaving ends the pipe.
        return os.open(self._path, os.O_RDWR | os.O_NONBLOCK)

    def _hear(self, pipe: int) -> None:
        with suppress(BlockingIOError):
            os.read(pipe, 4096)
        self._rung.set()
        self._rung = asyncio.Event()
