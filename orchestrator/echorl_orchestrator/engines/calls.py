"""Calls that wait for one engine's answers, and how one of them or all at once are given up."""

import asyncio
from types import TracebackType


class CallsGivenUpError(Exception):
    """The call was given up; the text says why."""


class Call:
    """A block of a task that can be given up from outside, as ``asyncio.timeout`` does it: by cancelling the task.

    So no task or future of its own is needed, and a thousand calls that wait cost the next one nothing.
    """

    __slots__ = ("_cancelled_before", "_others", "_task", "reason")

    def __init__(self, others: set["Call"]) -> None:
        self._others = others
        self.reason: str | None = None
        """Why it was given up."""

    def __enter__(self) -> "Call":
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        self._task, self._cancelled_before = task, task.cancelling()
        self._others.add(self)
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self._others.discard(self)
        if self.reason is None:
            return
        # The cancellation was ours, unless somebody else has asked for one, too.
        asked_by_others = self._task.uncancel() > self._cancelled_before
        if error is None or (asked_by_others and isinstance(error, asyncio.CancelledError)):
            return
        raise CallsGivenUpError(self.reason) from None

    def give_up(self, reason: str) -> None:
        """End the call; one that was given up before stays so for the reason that it had."""
        if self.reason is None:
            self.reason = reason
            self._task.cancel()


class Calls:
    """The calls that run on an engine from one moment to the next at which they are given up."""

    def __init__(self) -> None:
        self._running: set[Call] = set()
        self.reason: str | None = None
        """Why they were given up."""

    def running(self) -> Call:
        """A call whose block runs as one of these.

        Raises:
            CallsGivenUpError: they were given up; by the block, if that happens while it runs.
        """
        if self.reason is not None:
            raise CallsGivenUpError(self.reason)
        return Call(self._running)

    def give_up(self, reason: str) -> None:
        """End every call that runs; later ones are refused."""
        self.reason = reason
        for call in self._running:
            call.give_up(reason)
