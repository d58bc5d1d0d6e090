"""A rank that is given notice: its gang saves at the end of the step under way if that comes in time, or it ends.

    pod --SIGUSR1--> thread --POST /trainer/notice--> orchestrator, which decides once for the gang
    step N: the loop goes on until it is told (410) that N was the last one, saves it and ends, as all ranks do
    none:   the rank ends now; a save under way is waited for

Nothing of it holds the loop up. What is not done when the time is over is lost, as without a notice.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import msgspec
import structlog

from echorl_core.names import ExitCode
from echorl_core.termination_message import TerminationMessage, write
from echorl_core.wire.reports import NoticeReply, NoticeReport
from echorl_trainer.health import Health
from echorl_trainer.link import Fenced, Link, Unreachable

log = structlog.get_logger()

LONGEST_CALL_S = 5.0
"""For the orchestrator to decide; one that says nothing has ended, too."""
_LOOK_S = 0.1


@dataclass(frozen=True)
class Gang:
    """What the rank needs to have its gang save."""

    link: Link
    last_save_s: Callable[[], float]
    """How long the newest save took until it was acknowledged; 0: none was."""
    health: Health
    attempt: int
    rank: int


class Notice:
    """Answers the notice of one rank; made before torch is imported."""

    def __init__(self, within_s: float, words: Callable[[int, str], TerminationMessage]) -> None:
        """``within_s``: seconds from a notice until the process ends. ``words``: last words by code and message."""
        self._within_s, self._words = within_s, words
        self.gang: Gang | None = None
        """None until the rank trains: before that there is nothing to save."""

    def given(self) -> NoReturn:
        """See to the notice; ends the process, unless the loop has done so before. Blocks: for a thread of its own."""
        until = time.monotonic() + self._within_s
        log.info("given notice", within_s=self._within_s)
        if self.gang is None:
            self._end(ExitCode.NOTICE, "given notice before its first step")
        health = self.gang.health
        if (problem := health.progress.problem()) is not None:
            # This one is a fault: probes end a rank that makes no progress by the same signal.
            self._end(128 + signal.SIGTERM, f"terminated: {problem}")
        reply = self._asked(self.gang)
        log.info("the gang was given notice", step=reply.step, why=reply.why)
        if reply.step is None:
            while health.progress.saving is not None and time.monotonic() < until:
                health.watch.failed.wait(_LOOK_S)
            self._end(ExitCode.NOTICE, f"given notice: {reply.why}")
        time.sleep(max(0.0, until - time.monotonic()))
        self._end(ExitCode.NOTICE, f"given notice: step {reply.step} was not saved within {self._within_s:g} s")

    def _asked(self, gang: Gang) -> NoticeReply:
        report = NoticeReport(attempt=gang.attempt, rank=gang.rank, within_s=self._within_s, save_s=gang.last_save_s())
        try:
            answer = gang.link.once(
                "POST", "/trainer/notice", msgspec.json.encode(report), timeout_s=min(LONGEST_CALL_S, self._within_s)
            )
            if answer.status == 200:
                return msgspec.json.decode(answer.body, type=NoticeReply)
            why = f"the orchestrator answers {answer.status}"
        except (Unreachable, Fenced, msgspec.DecodeError, msgspec.ValidationError) as error:
            why = f"the orchestrator cannot be asked ({error})"
        return NoticeReply(step=None, why=f"{why}; the step under way is dropped")

    def _end(self, code: int, message: str) -> NoReturn:
        log.info("the rank ends", code=code, reason=message)
        write(self._words(code, message))
        os._exit(code)
