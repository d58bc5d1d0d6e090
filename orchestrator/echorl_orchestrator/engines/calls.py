"""Calls that wait for one engine's answers, and how all of them are given up at once."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class CallsGivenUpError(Exception):
    """The engine's calls were given up; the text says why."""


class Calls:
    """The calls that run on an engine from one moment to the next at which they are given up.

    A call is interrupted by cancelling its task, as ``asyncio.timeout`` does: no task or future of its own is needed,
    and a thousand calls that wait cost the next one nothing.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self.reason: str | None = None
        """Why they were given up."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the block as one of the calls.

        Raises:
            CallsGivenUpError: they were given up before it, or while it ran.
        """
        if self.reason is not None:
            raise CallsGivenUpError(self.reason)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        cancelled_before = task.cancelling()
        self._tasks.add(task)
        try:
            yield
        except BaseException as error:
            if self.reason is None:
                raise
            # The cancellation was ours, unless somebody else has asked for one, too.
            if task.uncancel() > cancelled_before and isinstance(error, asyncio.CancelledError):
                raise
            raise CallsGivenUpError(self.reason) from None
        finally:
            self._tasks.discard(task)

    def give_up(self, reason: str) -> None:
        """End every call that runs; later ones are refused."""
        self.reason = reason
        for task in self._tasks:
            task.cancel()
