"""Waiting for a condition on the engines' states."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Changes:
    """Wakes everyone who waits for a condition whenever an engine or the target version changes."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Let every waiter look again."""
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, look: Callable[[], T | None], seconds: float | None = None) -> T:
        """The first value of ``look`` that is not None; it is asked at once and after every change.

        Raises:
            TimeoutError: ``seconds`` passed; None waits for as long as the task lives.
        """
        if (value := look()) is not None:
            return value
        async with asyncio.timeout(seconds):
            while (value := look()) is None:
                await self._event.wait()
        return value
