"""What comes in while batches are trained: policies, steps and parts from the trainer, evals, a request to stop."""

import asyncio
from typing import Any

from echorl_core.wire.batch import StopNotice
from echorl_core.wire.goodput import TimeState
from echorl_core.wire.reports import (
    NoticeReply,
    NoticeReport,
    PartsReply,
    PartsReport,
    RestartReply,
    RestartReport,
    StepReport,
)
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_orchestrator.control.run_parts import RunParts
from echorl_orchestrator.episode_outcome import EpisodeOutcome, FailedEpisode
from echorl_orchestrator.records.recorder import EPISODES, EVALS, STEPS, eval_row, eval_summary, step_row, was_played


class TrainerReports:
    """Takes in what the trainer and the evals report, and hands it to those whom it concerns."""

    def __init__(self, parts: RunParts) -> None:
        self._identity, self._disk, self._live, self._pool = parts.identity, parts.disk, parts.live, parts.pool
        self._evals, self._health, self._board = parts.evals, parts.health, parts.board
        self._rollout = parts.rollout
        self._progress, self._throughput, self._monitors = parts.progress, parts.throughput, parts.monitors
        self._meter = parts.meter
        self._announced: PolicyAnnouncement | None = None
        # A trainer that had no answer asks again while the first call may still wait for room on the volume.
        self._one_policy, self._one_step = asyncio.Lock(), asyncio.Lock()

    async def policy(self, announcement: PolicyAnnouncement) -> None:
        """The trainer holds a new version. Repeated announcements do no harm."""
        self._health.beat()
        async with self._one_policy:
            await self._new_policy(announcement)

    async def _new_policy(self, announcement: PolicyAnnouncement) -> None:
        if self._announced is not None and not announcement.supersedes(self._announced):
            return
        self._announced = announcement
        self._pool.announce(announcement)
        for step in self._disk.store.checkpoint_steps(announcement.version):
            self._disk.committer.expect(step)
        notice = self._disk.desk.notice
        if notice is not None and notice.checkpoint and notice.step <= announcement.version:
            self._disk.committer.expect(notice.step)
        self._evals.reached(announcement.version)
        await self._disk.desk.announced(announcement)
        self._rollout.wake()
        await self._board.refresh()

    async def step(self, report: StepReport) -> None:
        """A step was trained: its row is in the records when this returns. Repeated reports do no harm."""
        async with self._one_step:
            await self._new_step(report)

    async def _new_step(self, report: StepReport) -> None:
        if report.step <= self._disk.desk.reported:
            return
        served = self._pool.served() or (None, None)
        throughput = {
            **self._throughput.lap(report.trained_tokens),
            "version/trained": report.step,
            "version/served_min": served[0],
            "version/served_max": served[1],
        }
        row = step_row(self._identity.attempt, report, self._disk.store.counts(report.step), throughput)
        self._progress.step(row)
        self._health.beat()
        await self._disk.recorder.append(STEPS, [row])
        await self._meter.step(report.step, report.seconds)
        self._monitors.step(row, self._pool.metrics_snapshot())
        await self._disk.desk.step_reported(report.step)
        await self._board.refresh()

    async def parts(self, report: PartsReport) -> PartsReply:
        """A rank has written its parts of a checkpoint."""
        self._health.beat()
        return await self._disk.committer.take(report)

    async def restarted(self, report: RestartReport) -> RestartReply:
        """The gang was started again in place, and goes on from a step that it holds in memory."""
        self._health.beat()
        await self._disk.desk.restarted(report)
        await self._meter.restarted()
        state = await self._disk.committer.restarted(report.step)
        await self._board.refresh()
        return RestartReply(checkpoint=state)

    async def stop(self) -> StopNotice:
        """Decide where the run stops on request. Idempotent."""
        self._live.close("the run is stopping")
        notice = await self._disk.desk.stop(committed=self._committed)
        self._expect(notice)
        await self._board.refresh()
        return notice

    async def notice(self, report: NoticeReport) -> NoticeReply:
        """A rank was given notice; what its gang does."""
        reply = await self._disk.desk.noticed(report, committed=self._committed)
        if (notice := self._disk.desk.notice) is not None:
            self._expect(notice)
        return reply

    @property
    def _committed(self) -> int:
        newest = self._disk.committer.newest
        return 0 if newest is None else newest.step

    def _expect(self, notice: StopNotice) -> None:
        if notice.checkpoint and (self._disk.desk.trained or 0) >= notice.step:
            self._disk.committer.expect(notice.step)

    async def evaluated(self, row: dict[str, Any], outcomes: list[EpisodeOutcome], failed: list[FailedEpisode]) -> None:
        """An eval is done: record it, and some of its episodes, or all. One that was skipped has a row alone."""
        await self._disk.recorder.append(EVALS, [row])
        for outcome in (*outcomes, *(lost.outcome for lost in failed)):
            self._meter.decided(outcome.episode, TimeState.EVALUATING)
        if not was_played(row):
            return
        self._monitors.evaluated(row)
        rows = [eval_row(row["step"], self._identity.attempt, unit) for unit in outcomes[:: max(1, len(outcomes) // 4)]]
        await self._disk.recorder.append(EPISODES, rows[:4])
        self._progress.evaluated(row["environment"], eval_summary(row))
        self._health.beat()
        await self._board.refresh()
        await self._disk.episodes.evaluated(row["step"], row["environment"], outcomes, failed)
