"""How an attempt ends: finished, stopped on request, or failed. Its ranks have a while to hear of it.

How a process ends that was given notice: another one goes on with the attempt.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog

from echorl_core.names import ExitCode, Phase
from echorl_orchestrator.control.run_parts import RunParts
from echorl_orchestrator.control.trainer_reports import TrainerReports
from echorl_orchestrator.failures import RunFailure

log = structlog.get_logger()

TOLD_WITHIN_S = 60.0
"""How long ranks have to fetch the notice of a clean end."""
ACKNOWLEDGED_S = 5.0
"""How long ranks that were given notice have to hear that their checkpoint is committed."""
FAILURE_SHOWN_S = 5.0
"""How long a failed role stays up, so that its state can be read."""


class Ending(NamedTuple):
    """How an attempt ended."""

    code: ExitCode
    words: str
    """One sentence."""


class Endings:
    """Ends one attempt, in one of three ways, or leaves it to another process."""

    def __init__(self, parts: RunParts, reports: TrainerReports) -> None:
        self._disk, self._live, self._board, self._end = parts.disk, parts.live, parts.board, parts.end
        self._reports, self._meter = reports, parts.meter

    async def finished(self) -> Ending:
        """Every batch is trained: save what is missing, and tell the ranks."""
        last = self._live.last
        missing = self._disk.unsaved(last)
        await self._disk.desk.finish(last, checkpoint=missing)
        if missing:
            self._disk.committer.expect(last)
            await self._board.refresh()
            self._disk.check_saved(last, await self._disk.committer.settled(last))
            await self._disk.committer.acknowledged(last, TOLD_WITHIN_S)
        self._end.reached(Phase.SUCCEEDED)
        self._meter.measure()
        await self._board.refresh()
        log.info("finished", step=last)
        if not await self._disk.desk.concluded(TOLD_WITHIN_S):
            log.warning("not every trainer rank asked whether the run is over", told=sorted(self._disk.desk.told))
        return Ending(ExitCode.OK, f"finished: step {last} is trained, committed and evaluated")

    async def stopped(self) -> Ending:
        """Save at the decided step, and end when the ranks know."""
        notice = await self._reports.stop()
        log.info("stopping", step=notice.step, checkpoint=notice.checkpoint)
        if notice.checkpoint:
            state = await self._disk.committer.settled(notice.step)
            log.info("stopped", step=notice.step, checkpoint=state)
        self._end.reached(Phase.SUSPENDED)
        self._meter.measure()
        await self._board.refresh()
        if not await self._disk.desk.concluded(TOLD_WITHIN_S):
            log.warning("not every trainer rank heard of the stop, or a report is missing", step=notice.step)
        if notice.checkpoint:
            await self._disk.committer.acknowledged(notice.step, TOLD_WITHIN_S)
        else:
            await self._disk.committer.heard(TOLD_WITHIN_S)
        return Ending(ExitCode.STOPPED, f"stopped on request at step {notice.step}")

    async def left(self, seal_ready: Callable[[], Awaitable[None]]) -> None:
        """Keep what the next orchestrator of this attempt would else miss; episodes in flight are lost.

        That is a batch whose episodes are ready (``seal_ready``), the checkpoint of a gang that was given notice, too,
        and the account of time.
        """
        await seal_ready()
        # Before the wait for a gang that may be gone: whoever ends this process may not wait for it.
        await self._meter.keep()
        notice = self._disk.desk.notice
        if notice is not None and notice.reason == "notice" and notice.checkpoint:
            await self._disk.committer.settled(notice.step)
            await self._disk.committer.acknowledged(notice.step, ACKNOWLEDGED_S)
        await self._meter.keep()

    async def failed(self, failure: RunFailure) -> Ending:
        """Show why for as long as ranks need to see it."""
        log.error("the run failed", reason=failure.message, exit_code=int(failure.code))
        self._end.failed(failure)
        self._meter.measure()
        await self._disk.desk.fail()
        await self._board.refresh()
        await self._disk.desk.concluded(FAILURE_SHOWN_S)
        return Ending(failure.code, failure.message)
