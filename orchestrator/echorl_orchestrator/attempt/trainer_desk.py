"""What trainer ranks are told: their batch, to ask again, or that it is over.

A stop is decided once. Its step is the highest that any rank was given, so that every rank stops at the same one; it is
written to the attempt's folder before the first rank hears of it, so that a restarted orchestrator says the same. The
newest announced policy is kept there too, so that engines are brought to it without waiting for the trainer.
"""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from echorl_core.rundir import write_file
from echorl_core.wire.batch import StopNotice
from echorl_core.wire.reports import NoticeReply, NoticeReport, RestartReport
from echorl_core.wire.run_state import RestartsInPlace
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_orchestrator.attempt.trainer_pace import TrainerPace
from echorl_orchestrator.batches.batch_store import BatchStore
from echorl_orchestrator.disk_room import DiskRoom, is_full

log = structlog.get_logger()

STOP_NAME = "stop.json"
RESTART_NAME = "restart.json"
POLICY_NAME = "policy.json"


class NoSuchBatch(Exception):
    """A pull that no answer can ever satisfy; the message says what was asked for."""


class TrainerDesk:
    """Answers pulls and knows how far the trainer is."""

    def __init__(
        self,
        store: BatchStore,
        *,
        num_ranks: int,
        context: int = 1,
        start_step: int,
        attempt_folder: Path,
        room: DiskRoom | None = None,
    ) -> None:
        """``start_step``: the step that this attempt resumed from. ``room``: where a policy waits for it.

        ``context``: consecutive ranks that are given the same batch.
        """
        self._store, self._num_ranks, self._room = store, num_ranks, room or DiskRoom()
        self._context = context
        self._marker, self._policy_file = attempt_folder / STOP_NAME, attempt_folder / POLICY_NAME
        self._restart_file = attempt_folder / RESTART_NAME
        self._changed = asyncio.Condition()
        self._limit: int | None = None
        self._pulled: dict[int, set[int]] = {}
        self.start_step = start_step
        self.policy: PolicyAnnouncement | None = None
        """The newest; None before the first announcement."""
        # Whatever was sealed may have been pulled before a restart.
        self.given = max(store.newest or 0, start_step)
        """Highest step that any rank was given."""
        self.reported = start_step
        """Highest step whose report came in."""
        self.notice: StopNotice | None = None
        self.told: set[int] = set()
        """Ranks that were told of the stop."""
        self.restarts_in_place = RestartsInPlace()
        """Of the gang in this attempt."""
        self._heard_of = False
        self._after_notice: NoticeReply | None = None
        """What was decided when a rank was given notice."""
        self.pace = TrainerPace()
        """Of this process: a restarted one measures anew."""
        self.on_moved: Callable[[], None] = lambda: None
        """Called when a rank asks for a batch that is not there, or is the first to have one."""

    @property
    def trained(self) -> int | None:
        """Newest announced version; None before the first announcement."""
        return None if self.policy is None else self.policy.version

    def load(self) -> None:
        """Read the stop that was decided, and the policy that was announced, before a restart. Blocking."""
        if self._policy_file.exists():
            self.policy = msgspec.json.decode(self._policy_file.read_bytes(), type=PolicyAnnouncement)
        if self._restart_file.exists():
            self.restarts_in_place = msgspec.json.decode(self._restart_file.read_bytes(), type=RestartsInPlace)
        if self._marker.exists():
            self.notice = msgspec.json.decode(self._marker.read_bytes(), type=StopNotice)
            self._limit = self.notice.step
            self._heard_of = True

    async def announced(self, policy: PolicyAnnouncement) -> None:
        """Note a policy version; a restarted orchestrator knows it when this has returned."""
        self._heard_of = True
        if self.policy is not None and not policy.supersedes(self.policy):
            return
        data, file = msgspec.json.encode(policy), self._policy_file
        await self._room.written(POLICY_NAME, lambda: write_file(file, data, within=file.parent))
        self.policy = policy
        await self._notify()

    async def restarted(self, report: RestartReport) -> None:
        """Note that the gang was started again in place: from now on ranks of before are refused.

        It is written down where a pod has taken the place of a lost one: that one's ranks may still be at work.
        """
        known = self.restarts_in_place = RestartsInPlace(
            count=report.count, reason=report.reason, replacements=report.replacements
        )
        if report.replacements:
            data, file = msgspec.json.encode(known), self._restart_file
            await self._room.written(RESTART_NAME, lambda: write_file(file, data, within=file.parent))

    def refusal(self, restarts: str | None) -> str | None:
        """Why a message of a rank that so many restarts in place came before is not taken; None if it is.

        ``restarts``: None: it is no rank's.
        """
        count = self.restarts_in_place.count
        if restarts is None or not restarts.isdigit() or int(restarts) >= count:
            return None
        return f"message of a rank of before restart {count} in place; {restarts} came before it"

    async def step_reported(self, step: int) -> None:
        """Note that the report of ``step`` is recorded."""
        self.reported = max(step, self.reported)
        await self._notify()

    async def done(self, step: int) -> None:
        """Wait until the trainer has announced version ``step`` and reported the step."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.trained is not None and self.trained >= step and self.reported >= step
            )

    async def pull(self, step: int, rank: int, wait_s: float) -> Path | StopNotice | None:
        """The file with the rank's batch, a notice that there will be none, or None: not sealed within ``wait_s``.

        Raises:
            NoSuchBatch: the rank is none of this run's, or the batch was released.
        """
        if not 0 <= rank < self._num_ranks:
            raise NoSuchBatch(f"rank: found {rank}, accepted is 0 to {self._num_ranks - 1}")
        if step <= self.start_step or (step <= self.given and self._store.seal(step) is None):
            raise NoSuchBatch(f"step: found {step}, the batch is no longer kept; the newest given is {self.given}")
        self._heard_of = True
        if step == self.given + 1:
            self.pace.asked(step)
            self.on_moved()
        try:
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self._is_over(step) or self._is_there(step))
        except TimeoutError:
            return None
        if self._is_over(step):
            self.told.add(rank)
            await self._notify()
            return self.notice
        if step > self.given:
            self.given = step
            self.pace.given(step)
            self.on_moved()
        return self._store.rank_file(step, rank // self._context)

    def due_in_s(self, step: int) -> float:
        """Seconds until the batch of ``step`` is to be sealed; infinite while no rank has the one before it."""
        return math.inf if step > self.given + 1 else self.pace.due_in_s(step)

    def pulled(self, step: int, rank: int) -> int:
        """Note that a rank's batch was sent; how many ranks have theirs."""
        ranks = self._pulled.setdefault(step, set())
        ranks.add(rank)
        for old in [other for other in self._pulled if other < step - 8]:
            del self._pulled[old]
        return len(ranks)

    async def sealed(self) -> None:
        """A batch was sealed: answer those who wait for it."""
        await self._notify()

    async def stop(self, *, committed: int) -> StopNotice:
        """Decide that no step beyond the ones given out is trained. Idempotent.

        Args:
            committed: newest committed step; a stop there needs no checkpoint.
        """
        if self.notice is None:
            # Given out no further from here on, told to nobody before it is on disk.
            self._limit = max(self.given, self.trained or 0) if self._limit is None else self._limit
            decided = StopNotice(reason="stopped", step=self._limit, checkpoint=self._limit > committed)
            await asyncio.to_thread(self._mark, decided)
            self.notice = decided
            await self._notify()
        return self.notice

    async def noticed(self, report: NoticeReport, *, committed: int) -> NoticeReply:
        """A rank was given notice: decide for its gang, once, whether the step under way is saved or dropped.

        It is not written down. A rank that was told has ended, or is about to, so no other one trains on without it.

        Args:
            report: of the rank; what others report later changes nothing.
            committed: newest committed step; a stop there needs no checkpoint.
        """
        if self.notice is None:
            self._after_notice = self._decided(report, committed)
            log.warning("the trainer was given notice", rank=report.rank, decision=self._after_notice.why)
            await self._notify()
        assert self.notice is not None  # noqa: S101 - decided above
        if self.notice.reason == "failed":
            return NoticeReply(step=None, why="the run has failed")
        return self._after_notice or NoticeReply(step=self.notice.step, why=f"step {self.notice.step} is the last")

    def _decided(self, report: NoticeReport, committed: int) -> NoticeReply:
        needed_s = self.pace.left_s() + report.save_s
        fits = needed_s <= report.within_s
        trained = max(self.trained or 0, self.start_step)
        # Dropped: whoever has not got the batch under way yet hears of the end, too.
        step = self._limit = max(self.given, trained) if fits else trained
        self.notice = StopNotice(reason="notice", step=step, checkpoint=fits and step > committed)
        seconds = f"it takes {needed_s:.0f} s of {report.within_s:.0f} s that are left"
        if fits:
            return NoticeReply(step=step, why=f"step {step} is ended and saved: {seconds}")
        return NoticeReply(step=None, why=f"the step after {step} is dropped, to end and save it comes late: {seconds}")

    async def finish(self, step: int, *, checkpoint: bool = False) -> None:
        """The run is complete: ranks that ask for more may exit; with ``checkpoint`` they save ``step`` first."""
        self.notice, self._limit = StopNotice(reason="finished", step=step, checkpoint=checkpoint), step
        await self._notify()

    async def fail(self) -> None:
        """The run failed: ranks that ask for more may exit."""
        if self.notice is None:
            step = max(self.given, self.trained or 0)
            self.notice, self._limit = StopNotice(reason="failed", step=step, checkpoint=False), step
            await self._notify()

    async def concluded(self, deadline_s: float) -> bool:
        """Wait until every rank knows of the end and, unless the run failed, the last step's report is in.

        At once if no rank ever showed up. False at the deadline.
        """
        if not self._heard_of:
            return True
        try:
            async with asyncio.timeout(deadline_s), self._changed:
                await self._changed.wait_for(lambda: len(self.told) >= self._num_ranks and self._has_its_reports())
        except TimeoutError:
            return False
        return True

    def _mark(self, decided: StopNotice) -> None:
        """Make a stop durable. A full volume is no reason not to stop: a restarted orchestrator is asked again."""
        try:
            write_file(self._marker, msgspec.json.encode(decided), within=self._marker.parent)
        except OSError as error:
            if not is_full(error):
                raise
            log.warning("the volume is full; the stop is not written down", step=decided.step, error=str(error))

    def _has_its_reports(self) -> bool:
        # Rank 0 posts reports beside its work: its pull of the step after may come in before them.
        notice = self.notice
        return notice is None or notice.reason == "failed" or self.reported >= notice.step

    def _is_there(self, step: int) -> bool:
        return self._store.seal(step) is not None and (self._limit is None or step <= self._limit)

    def _is_over(self, step: int) -> bool:
        return self.notice is not None and step > self.notice.step

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
