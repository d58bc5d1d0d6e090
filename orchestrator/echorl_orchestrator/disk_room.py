"""What the run cannot go on without is written once there is room: a full volume stops a run, and does not end it."""

import asyncio
import errno
from collections.abc import Callable
from typing import TypeVar

import structlog

T = TypeVar("T")

log = structlog.get_logger()

AGAIN_S = 5.0
"""Between two tries."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""No room left, of the volume, of a quota, or of the largest file."""


def is_full(error: OSError) -> bool:
    """Whether a write failed for want of room."""
    return error.errno in _FULL


class DiskRoom:
    """Writes that wait for room on the run's volume, and what is told of them meanwhile."""

    def __init__(self, *, before: Callable[[], None] = lambda: None, again_s: float = AGAIN_S) -> None:
        """``before``: called before each try, in its thread; what it raises ends the wait."""
        self._before, self._again_s = before, again_s
        self._waiting: dict[str, str] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called when ``lacking`` has changed."""

    @property
    def lacking(self) -> str | None:
        """What cannot be written, and why; None while there is room."""
        return next((f"{what} cannot be written: {why}" for what, why in self._waiting.items()), None)

    async def written(self, what: str, write: Callable[[], T]) -> T:
        """What ``write`` returns, which runs in a thread, and again and again while there is no room for it.

        Args:
            what: it writes, for people.
            write: blocking; it leaves nothing of a try that fails.

        Raises:
            OSError: it failed for another reason.
        """
        try:
            while True:
                try:
                    return await asyncio.to_thread(self._try, write)
                except OSError as error:
                    if not is_full(error):
                        raise
                    self._tell(what, error)
                await asyncio.sleep(self._again_s)
        finally:
            if self._waiting.pop(what, None) is not None:
                self.on_change()

    def _try(self, write: Callable[[], T]) -> T:
        self._before()
        return write()

    def _tell(self, what: str, error: OSError) -> None:
        if what not in self._waiting:
            log.error("the volume is full; the run goes on when there is room", waits=what, error=str(error))
            self._waiting[what] = str(error)
            self.on_change()
