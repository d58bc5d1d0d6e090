"""Who may speak now. The turns of one slot are taken together, or none of them is.

speak    a member asks to speak: its turn is sampled while its siblings' are
settle   the turn is there; the last one of the slot takes all of them, in the schedule's order
fail     one could not be sampled: its siblings are cancelled, and nothing of the slot stands anywhere
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from echorl_orchestrator.environments.contract import Slot
from echorl_orchestrator.failures import EpisodeError, ErrorKind

T = TypeVar("T")


class TurnTaking:
    """The schedule of one episode as it is played."""

    def __init__(self, schedule: Sequence[Slot]) -> None:
        self._schedule = list(schedule)
        self._place = 0
        self._speaking: dict[str, asyncio.Task[Any]] = {}
        self._takes: dict[str, Callable[[], Any]] = {}
        self._taken: asyncio.Future[dict[str, Any]] | None = None
        self._spoke: dict[str, int] = {}
        self.failure: BaseException | None = None
        """What ended the episode: the first error of any member."""

    @property
    def slot(self) -> Slot | None:
        """Whose turn it is; None when the schedule is exhausted."""
        return self._schedule[self._place] if self._place < len(self._schedule) else None

    def check(self) -> None:
        """Raise what has ended the episode, if anything has: calls come from outside at any time."""
        if self.failure is not None:
            raise self.failure

    async def speak(self, member: str, turn: Coroutine[Any, Any, T]) -> T:
        """Sample a member's turn; returns when all of its slot are taken.

        ``turn`` calls ``settle`` when it is sampled. Cancelling this fails the slot.

        Raises:
            EpisodeError: PROTOCOL: it is not this member's turn, it has spoken in this slot, or the episode is over.
                CANCELLED: a sibling failed.
            Exception: whatever ``turn`` failed with.
        """
        try:
            self._admit(member)
        except EpisodeError as error:
            turn.close()
            self.fail(error)
            raise
        task: asyncio.Task[T] = asyncio.ensure_future(turn)
        self._speaking[member] = task
        try:
            said: T = await task
        except asyncio.CancelledError as error:
            self.fail(error)
            if _asked_to_stop():
                raise
            raise EpisodeError(ErrorKind.CANCELLED, f"a sibling of {member} failed") from None
        except BaseException as error:
            self.fail(error)
            raise
        return said

    async def settle(self, member: str, take: Callable[[], T]) -> T:
        """The member's turn is sampled: ``take`` puts it where it belongs once every sibling is there as well.

        ``take`` must not wait, and must not fail.

        Raises:
            EpisodeError: CANCELLED: a sibling failed.
        """
        slot = self.slot
        if self.failure is not None or slot is None or member not in self._speaking:
            raise EpisodeError(ErrorKind.CANCELLED, f"{member}: the slot is over")
        self._takes[member] = take
        if self._taken is None:
            self._taken = asyncio.get_running_loop().create_future()
        if len(self._takes) == len(slot.members):
            taken = {name: self._takes[name]() for name in slot.members}
            done, self._taken, self._takes, self._speaking = self._taken, None, {}, {}
            self._spoke = dict.fromkeys(slot.members, self._place)
            self._place += 1
            done.set_result(taken)
        else:
            taken = await asyncio.shield(self._taken)
        return cast(T, taken[member])

    def fail(self, error: BaseException) -> None:
        """End the slot without taking any turn of it. The first error stands."""
        if self.failure is not None:
            return
        self.failure = error
        self._takes = {}
        for task in self._speaking.values():
            task.cancel()

    def _admit(self, member: str) -> None:
        slot = self.slot
        if self.failure is not None or slot is None:
            raise _refused(f"{member} spoke late: the episode is over")
        if member in self._speaking:
            raise _refused(f"{member} spoke twice in slot {slot.id!r}")
        if member not in slot.members:
            what = "late" if self._spoke.get(member) == self._place - 1 else "out of turn"
            raise _refused(f"{member} spoke {what}: slot {slot.id!r} is for {', '.join(slot.members)}")


def _refused(message: str) -> EpisodeError:
    return EpisodeError(ErrorKind.PROTOCOL, message)


def _asked_to_stop() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
