"""Events of objects that something is wrong with."""

import functools
import time
from collections.abc import Callable

from echorl_operator.kube.connection import Call, Connection
from echorl_operator.kube.rare_reads import RareReads, ReaderSettings
from echorl_operator.kube.resources import CORE_EVENT
from echorl_operator.observed import decode
from echorl_operator.observed.warning_events import EventSubject, WarningEvent

MOST_EVENTS = 50
"""The most events that are read of one object; controllers fold equal ones into one."""
TIMEOUT_S = 5.0


async def read_events(connection: Connection, namespace: str, subject: EventSubject) -> tuple[WarningEvent, ...]:
    """Read the events of one object.

    Raises:
        errors.ApiError: they cannot be read.
    """
    selector = f"involvedObject.kind={subject.kind},involvedObject.name={subject.name}"
    if subject.uid:
        selector = f"{selector},involvedObject.uid={subject.uid}"
    query = {"fieldSelector": selector, "limit": str(MOST_EVENTS)}
    call = Call("list", CORE_EVENT.path(namespace), CORE_EVENT.plural, query, timeout_s=TIMEOUT_S)
    return tuple(decode.warning_event(body) for body in decode.items(await connection.request(call)))


class WarningEventReader(RareReads[EventSubject, WarningEvent]):
    """Holds what events say, by run."""

    def __init__(
        self,
        connection: Connection,
        settings: ReaderSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(functools.partial(read_events, connection), settings, clock=clock)
