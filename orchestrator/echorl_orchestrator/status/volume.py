"""Whether the run directory is there, and how full its file system is."""

import asyncio
import os

import structlog

from echorl_core.rundir import RunDirectory
from echorl_orchestrator.attempt.presence import check_there

log = structlog.get_logger()

LOOK_S = 15.0


class Volume:
    """Looks from time to time, in a thread: a network file system may take long to answer."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self.size_bytes: int | None = None
        """None before the first look, and while it cannot be told."""
        self.free_bytes: int | None = None
        """Free bytes, as far as this user may fill them."""

    def look(self) -> None:
        """Ask once. Blocking.

        Raises:
            RunFailure: the run directory is gone.
        """
        try:
            check_there(self._run)
            stat = os.statvfs(self._run.root)
        except OSError as error:
            log.warning("how full the volume is cannot be told", folder=str(self._run.root), error=str(error))
            self.size_bytes = self.free_bytes = None
            return
        self.size_bytes, self.free_bytes = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize

    async def run(self) -> None:
        """Look until cancelled.

        Raises:
            RunFailure: the run directory is gone.
        """
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_S)
