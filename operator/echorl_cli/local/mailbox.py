"""Events handled one after the other, and the tasks whose results and failures become events."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

Outcome = TypeVar("Outcome")
P = ParamSpec("P")


class Mailbox(Generic[Outcome]):
    """A handler that returns an outcome ends the loop. Used in one event loop."""

    def __init__(self, on_error: Callable[[BaseException], Outcome], after_each: Callable[[], None]) -> None:
        """``on_error`` takes a task's failure: it returns an outcome, or raises."""
        self._on_error = on_error
        self._after_each = after_each
        self._handlers: asyncio.Queue[Callable[[], Outcome | None]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    def post(self, handler: Callable[[], Outcome | None]) -> None:
        """Have a handler called after those posted before it."""
        self._handlers.put_nowait(handler)

    def posting(self, handler: Callable[P, Outcome | None]) -> Callable[P, None]:
        """A function that has ``handler`` called with its arguments, in its turn."""

        def post(*args: P.args, **kwargs: P.kwargs) -> None:
            self.post(partial(handler, *args, **kwargs))

        return post

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task beside the loop; its failure goes to ``on_error``."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def run(self) -> Outcome:
        """Call handlers until one returns an outcome."""
        while True:
            handler = await self._handlers.get()
            outcome = handler()
            self._after_each()
            if outcome is not None:
                return outcome

    async def cancel(self) -> None:
        """End all tasks; returns when they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.post(lambda: self._on_error(error))
