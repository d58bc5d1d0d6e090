"""Taking in the stream of one engine: what it must say of itself, what of it is certain, and when it stands still."""

import asyncio
import time

from echorl_core import names
from echorl_core.routing import RouterShape
from echorl_orchestrator.engines.answers import BrokenStreamError, invalid, parse_frame
from echorl_orchestrator.engines.calls import Call
from echorl_orchestrator.engines.client import Answer
from echorl_orchestrator.engines.engine import VERIFIED, Engine, EngineState
from echorl_orchestrator.engines.journal.journalled_turn import JournalledTurn
from echorl_orchestrator.engines.open_turn import OpenStream, OpenTurn
from echorl_orchestrator.engines.routed_experts import decode

LOOKS = 4
"""At the streams, in the time that one of them may stand still."""


class Reception:
    """What an engine streams into a turn, event by event; ``stream`` has what came, however it ends."""

    def __init__(
        self,
        turn: OpenTurn,
        engine: Engine,
        journalled: JournalledTurn | None = None,
        routing: RouterShape | None = None,
    ) -> None:
        """``journalled``: is told of what is certain as it comes.

        ``routing``: the routers whose choices are wanted; None: nobody wants them.
        """
        self._turn = turn
        self._routing = routing
        self._engine = engine
        self._journalled = journalled
        self._heard = time.monotonic()
        self.stalled = False
        """It was given up because it stood still."""
        self.stream = OpenStream(engine.address, engine.boot_id or "", engine.version, engine.version)

    def begins(self, answer: Answer) -> None:
        """The head of the answer.

        Raises:
            BrokenStreamError: another start of the engine answers.
            EpisodeError: INVALID_RESPONSE when it holds a version that nobody here gave it.
        """
        check_boot(self._engine, answer)
        known = {None, self.stream.version_low, self._engine.version}
        # While it is being updated it may say either.
        if self._engine.state in VERIFIED and answer.version not in known:
            found = f"{names.HEADER_VERSION}: found {answer.version}"
            raise invalid(f"{found}, accepted is {self._engine.version}, which this pool has applied")

    def event(self, data: bytes) -> None:
        """The data of one event.

        Raises:
            BrokenStreamError: the engine ends the request before its end.
            EpisodeError: INVALID_RESPONSE when it cannot be used.
        """
        frame = parse_frame(data)
        if frame is None:
            return
        now = time.monotonic()
        if self.stream.token_ids and now > self._heard:
            self._engine.pace = len(frame.token_ids) / (now - self._heard)
        self._heard = now
        self._turn.take(self.stream, frame)
        if frame.experts is not None and self._routing is not None:
            self.stream.experts.append(decode(frame.experts, self._routing))
        # Between resume and probe nobody knows yet whether the weights are right.
        if self._engine.state in VERIFIED:
            self.stream.vouch(self._engine.version)
            if self._journalled is not None:
                self._journalled.streamed(self.stream)
        if frame.aborted:
            raise BrokenStreamError(f"engine {self._engine.address} aborted the request", "aborted")

    def look(self, now: float) -> float:
        """For how many seconds it has stood still, ``now`` by the monotonic clock."""
        # Before its first frame a request waits in the engine's queue, and under an update all of them stand still.
        if not self.stream.token_ids or self._engine.state is EngineState.UPDATING:
            self._heard = now
        return now - self._heard


class StallWatch:
    """Gives up the streams that stand still. It looks at all of them by one timer, so that none costs one."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._calls: dict[Reception, Call] = {}
        self._waiting = False

    def add(self, reception: Reception, call: Call) -> None:
        """Look at this stream from now on; ``call`` waits for it."""
        self._calls[reception] = call
        if not self._waiting:
            self._wait()

    def remove(self, reception: Reception) -> None:
        """The stream is over."""
        del self._calls[reception]

    def _wait(self) -> None:
        self._waiting = True
        asyncio.get_running_loop().call_later(self._stall_s / LOOKS, self._look)

    def _look(self) -> None:
        now, self._waiting = time.monotonic(), False
        for reception, call in self._calls.items():
            if reception.look(now) >= self._stall_s:
                reception.stalled = True
                call.give_up(f"its stream stood still for {self._stall_s} s")
        if self._calls:
            self._wait()


def check_boot(engine: Engine, answer: Answer) -> None:
    """Raise BrokenStreamError unless the answer is of this start of the engine."""
    if answer.boot_id != engine.boot_id:
        message = f"engine {engine.address} was restarted: boot id {answer.boot_id}, before {engine.boot_id}"
        raise BrokenStreamError(message)
