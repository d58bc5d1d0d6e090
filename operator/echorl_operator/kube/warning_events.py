"""Reads events of objects that something is wrong with: rarely, few at a time, and only while it is so."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
import structlog

from echorl_operator.kube import errors
from echorl_operator.kube.connection import Call, Connection
from echorl_operator.kube.resources import CORE_EVENT
from echorl_operator.observed import decode
from echorl_operator.observed.runs import RunKey, RunRecord
from echorl_operator.observed.warning_events import EventSubject, WarningEvent

MOST_EVENTS = 50
"""The most events that are read of one object; controllers fold equal ones into one."""

_log = structlog.get_logger()


@dataclass(frozen=True)
class ReaderSettings:
    """How often events are read. All times are in seconds."""

    first_s: float = 2.0
    """Wait before the first read since something was seen to be wrong: most of it is over by then."""
    again_s: float = 5.0
    longest_s: float = 60.0
    """Longest wait between two reads of one object's events; it doubles, since a read costs the API server a scan."""
    at_once: int = 4
    """The most reads that are under way."""
    timeout_s: float = 5.0


@dataclass
class _Asked:
    due: float
    wait_s: float
    known: tuple[WarningEvent, ...] = ()


async def read_events(
    connection: Connection, namespace: str, subject: EventSubject, *, timeout_s: float = 5.0
) -> tuple[WarningEvent, ...]:
    """Read the events of one object.

    Raises:
        errors.ApiError: they cannot be read.
    """
    selector = f"involvedObject.kind={subject.kind},involvedObject.name={subject.name}"
    query = {"fieldSelector": selector, "limit": str(MOST_EVENTS)}
    call = Call("list", CORE_EVENT.path(namespace), CORE_EVENT.plural, query, timeout_s=timeout_s)
    return tuple(decode.warning_event(one) for one in decode.items(await connection.request(call)))


class WarningEventReader:
    """Holds what events say, by run. A read that fails is logged and tried again later: it is worth no pass."""

    def __init__(
        self,
        connection: Connection,
        settings: ReaderSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection, self._settings, self._clock = connection, settings or ReaderSettings(), clock
        self._runs: dict[RunKey, dict[EventSubject, _Asked]] = {}
        self._uids: dict[RunKey, str] = {}
        self._reading = asyncio.Semaphore(self._settings.at_once)

    async def ask(self, run: RunRecord, subjects: Iterable[EventSubject]) -> bool:
        """Read what is due of these, and forget all others of the run: nothing is wrong with them any more.

        Returns:
            Whether anything was read.
        """
        if self._uids.get(run.key) != run.uid:
            self.forget(run.key)
        now, before = self._clock(), self._runs.pop(run.key, {})
        first_due, wait_s = now + self._settings.first_s, self._settings.again_s
        asked = {one: before.get(one) or _Asked(first_due, wait_s) for one in subjects}
        if not asked:
            self.forget(run.key)
            return False
        self._runs[run.key], self._uids[run.key] = asked, run.uid
        due = {subject: one for subject, one in asked.items() if one.due <= now}
        for subject, one in due.items():
            one.due, one.wait_s = now + one.wait_s, min(2 * one.wait_s, self._settings.longest_s)
            one.known = await self._read(run.key.namespace, subject, one.known)
        return bool(due)

    def known(self, run: RunRecord) -> tuple[WarningEvent, ...]:
        """The events that were read last of the objects that were asked about last."""
        if self._uids.get(run.key) != run.uid:
            return ()
        return tuple(complaint for one in self._runs[run.key].values() for complaint in one.known)

    def due_s(self, key: RunKey) -> float | None:
        """Seconds until events of a run are read next; None if nothing is wrong with it."""
        asked = self._runs.get(key)
        return max(0.0, min(one.due for one in asked.values()) - self._clock()) if asked else None

    def forget(self, key: RunKey) -> None:
        """Forget a run that is gone."""
        self._runs.pop(key, None)
        self._uids.pop(key, None)

    async def _read(
        self, namespace: str, subject: EventSubject, before: tuple[WarningEvent, ...]
    ) -> tuple[WarningEvent, ...]:
        try:
            async with self._reading:
                return await read_events(self._connection, namespace, subject, timeout_s=self._settings.timeout_s)
        except (errors.ApiError, msgspec.MsgspecError) as error:
            _log.warning("events could not be read", namespace=namespace, subject=str(subject), error=str(error))
            return before
