"""Background tasks whose failure cannot go unseen."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Background:
    """Owns tasks. The first one that fails makes ``watch`` raise; finishing is fine."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed = asyncio.Event()
        self._error: BaseException | None = None

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run ``work`` in the background."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def fail(self, error: BaseException) -> None:
        """Make ``watch`` raise ``error``."""
        self._error = self._error or error
        self._failed.set()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)

    async def watch(self) -> None:
        """Wait for ever; raises the first failure."""
        await self._failed.wait()
        raise self._error or RuntimeError("a background task failed")

    async def close(self) -> None:
        """Cancel what still runs."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
