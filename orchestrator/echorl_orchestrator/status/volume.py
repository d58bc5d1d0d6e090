"""How full the file system of the run directory is."""

import asyncio
import os
from pathlib import Path

import structlog

log = structlog.get_logger()

LOOK_S = 15.0


class Volume:
    """Looks from time to time, in a thread: a network file system may take long to answer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.size_bytes: int | None = None
        """None before the first look, and while it cannot be told."""
        self.free_bytes: int | None = None
        """Free bytes, as far as this user may fill them."""

    def look(self) -> None:
        """Ask once. Blocking."""
        try:
            found = os.statvfs(self._folder)
        except OSError as error:
            log.warning("how full the volume is cannot be told", folder=str(self._folder), error=str(error))
            self.size_bytes = self.free_bytes = None
            return
        self.size_bytes, self.free_bytes = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_S)
