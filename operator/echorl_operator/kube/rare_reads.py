"""Reads of what is not watched, about runs that something is wrong with: rarely, few at a time, only while it is so."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import structlog

from echorl_operator.kube import errors
from echorl_operator.observed.runs import RunKey, RunRecord

S = TypeVar("S", bound=Hashable)
T = TypeVar("T")

_log = structlog.get_logger()


@dataclass(frozen=True)
class ReaderSettings:
    """How often something is read. All times are in seconds."""

    first_s: float = 2.0
    """Wait before the first read since something was seen to be wrong: most of it is over by then."""
    again_s: float = 5.0
    longest_s: float = 60.0
    """Longest wait between two reads about one subject; it doubles, since a read costs the API server a scan."""
    at_once: int = 4
    """The most reads that are under way."""


class _Asked(Generic[T]):
    def __init__(self, due: float, wait_s: float) -> None:
        self.due, self.wait_s = due, wait_s
        self.answer: tuple[T, ...] = ()


class RareReads(Generic[S, T]):
    """Holds what was read about subjects, by run. A read that fails is logged and tried again: it is worth no pass."""

    def __init__(
        self,
        read: Callable[[str, S], Awaitable[tuple[T, ...]]],
        settings: ReaderSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``read`` gets a namespace and a subject, and raises ``errors.ApiError`` if it cannot read."""
        self._ask, self._settings, self._clock = read, settings or ReaderSettings(), clock
        self._runs: dict[RunKey, dict[S, _Asked[T]]] = {}
        self._uids: dict[RunKey, str] = {}
        self._reading = asyncio.Semaphore(self._settings.at_once)

    async def ask(self, run: RunRecord, subjects: Iterable[S]) -> bool:
        """Read what is due of these, and forget all others of the run: nothing is wrong with them any more.

        Returns:
            Whether anything was read.
        """
        if self._uids.get(run.key) != run.uid:
            self.forget(run.key)
        now, before = self._clock(), self._runs.pop(run.key, {})
        first_due, wait_s = now + self._settings.first_s, self._settings.again_s
        asked = {subject: before.get(subject) or _Asked[T](first_due, wait_s) for subject in subjects}
        if not asked:
            self.forget(run.key)
            return False
        self._runs[run.key], self._uids[run.key] = asked, run.uid
        due = {subject: query for subject, query in asked.items() if query.due <= now}
        for subject, query in due.items():
            query.due, query.wait_s = now + query.wait_s, min(2 * query.wait_s, self._settings.longest_s)
            query.answer = await self._read(run.key.namespace, subject, query.answer)
        return bool(due)

    def latest(self, run: RunRecord) -> tuple[T, ...]:
        """What was read last about the subjects that were asked about last."""
        if self._uids.get(run.key) != run.uid:
            return ()
        return tuple(record for query in self._runs[run.key].values() for record in query.answer)

    def due_s(self, key: RunKey) -> float | None:
        """Seconds until something is read next for a run; None if nothing is wrong with it."""
        asked = self._runs.get(key)
        return max(0.0, min(query.due for query in asked.values()) - self._clock()) if asked else None

    def forget(self, key: RunKey) -> None:
        """Forget a run that is gone."""
        self._runs.pop(key, None)
        self._uids.pop(key, None)

    async def _read(self, namespace: str, subject: S, before: tuple[T, ...]) -> tuple[T, ...]:
        try:
            async with self._reading:
                return await self._ask(namespace, subject)
        except (errors.ApiError, msgspec.MsgspecError) as error:
            _log.warning("a read failed", namespace=namespace, subject=str(subject), error=str(error))
            return before
