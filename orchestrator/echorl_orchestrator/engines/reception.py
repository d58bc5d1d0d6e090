"""Taking in the stream of one engine: what it must say of itself, what of it is certain, and when it stands still."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from echorl_core import names
from echorl_orchestrator.engines.answers import BrokenStreamError, invalid, parse_frame
from echorl_orchestrator.engines.calls import Calls
from echorl_orchestrator.engines.client import Answer
from echorl_orchestrator.engines.engine import VERIFIED, Engine, EngineState
from echorl_orchestrator.engines.open_turn import OpenStream, OpenTurn


class Reception:
    """What an engine streams into a turn, event by event; ``stream`` has what came, however it ends."""

    def __init__(self, turn: OpenTurn, engine: Engine, stall_s: float) -> None:
        self._turn = turn
        self._engine = engine
        self._stall_s = stall_s
        self._still = Calls()
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.stream = OpenStream(engine.address, engine.boot_id or "", engine.version, engine.version)

    @property
    def stalled(self) -> bool:
        """Whether it was given up because it stood still."""
        return self._still.reason is not None

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
        self._heard = self._loop.time()
        self._turn.take(self.stream, frame)
        # Between resume and probe nobody knows yet whether the weights are right.
        if self._engine.state in VERIFIED:
            self.stream.vouch(self._engine.version)
        if frame.aborted:
            raise BrokenStreamError(f"engine {self._engine.address} aborted the request", "aborted")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Run the block until the stream stands still.

        Raises:
            CallsGivenUpError: it did.
        """
        self._timer = self._loop.call_later(self._stall_s, self._look)
        try:
            with self._still.running():
                yield
        finally:
            self._timer.cancel()

    def _look(self) -> None:
        # Before its first frame a request waits in the engine's queue, and under an update all of them stand still.
        if not self.stream.token_ids or self._engine.state is EngineState.UPDATING:
            self._heard = self._loop.time()
        left = self._heard + self._stall_s - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._still.give_up(f"its stream stood still for {self._stall_s} s")


def check_boot(engine: Engine, answer: Answer) -> None:
    """Raise BrokenStreamError unless the answer is of this start of the engine."""
    if answer.boot_id != engine.boot_id:
        message = f"engine {engine.address} was restarted: boot id {answer.boot_id}, before {engine.boot_id}"
        raise BrokenStreamError(message)
