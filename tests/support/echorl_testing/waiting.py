"""Waiting for a condition, with a deadline."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    """Return once ``condition`` holds.

    Raises:
        TimeoutError: it does not hold within ``seconds``.
    """
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is often outside this process
            await asyncio.sleep(0.01)
