"""One event loop for all episodes of a worker: environments of verifiers share clients and servers between them."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class SharedLoop:
    """An event loop on a thread of its own, for as long as the process lives."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name=name, daemon=True).start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, which runs on the shared loop. Who cancels this waits until ``work`` has ended."""
        here = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = here.create_future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(lambda task: here.call_soon_threadsafe(_hand_over, task, outcome))

        self._loop.call_soon_threadsafe(begin)
        try:
            return await asyncio.shield(outcome)
        except asyncio.CancelledError:
            # After ``begin``.
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            await asyncio.wait({outcome})
            raise


def _hand_over(task: asyncio.Task[T], outcome: asyncio.Future[T]) -> None:
    error = None if task.cancelled() else task.exception()
    if task.cancelled():
        outcome.cancel()
    elif error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())
