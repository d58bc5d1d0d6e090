"""The work of a run: seal batch after batch, see each trained, evaluated and committed, and finish."""

import asyncio
import time
from typing import Any

import structlog
from msgspec.structs import replace

from echorl_core.config import OrchestratorConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_core.wire import PartsReply, PartsReport, PolicyAnnouncement, StepReport, StopNotice
from echorl_orchestrator.attempt.disk import Disk
from echorl_orchestrator.attempt.live_settings import AttemptSettings
from echorl_orchestrator.batches.batch_metrics import SinceLastBatch, batch_columns
from echorl_orchestrator.batches.rae_baselines import RunBaselines
from echorl_orchestrator.batches.sealing import Content, Place, SavedState, compose, extend, files, seal_of
from echorl_orchestrator.engines import EnginePool
from echorl_orchestrator.episode_outcome import EpisodeOutcome
from echorl_orchestrator.evals.evaluation import Evals
from echorl_orchestrator.failures import RunFailure
from echorl_orchestrator.monitors.monitors import Monitors
from echorl_orchestrator.records.recorder import EPISODES, EVALS, STEPS, eval_row, eval_summary, step_row, was_played
from echorl_orchestrator.rollout.counters import Counters
from echorl_orchestrator.rollout.groups import ReadyEpisode, units_of
from echorl_orchestrator.rollout.ready_buffer import matched
from echorl_orchestrator.rollout.rollout import Rollout
from echorl_orchestrator.status.health import Health
from echorl_orchestrator.status.run_view import RunView
from echorl_orchestrator.status.state_board import StateBoard

log = structlog.get_logger()

LITTLE_TO_TRAIN = 0.1
"""Share of a batch's episodes; see ``little_to_train``."""


class Training:
    """Drives the batches, and takes what the trainer sends."""

    def __init__(
        self,
        config: OrchestratorConfig,
        identity: RunIdentity,
        *,
        disk: Disk,
        pool: EnginePool,
        evals: Evals,
        counters: Counters,
        health: Health,
        view: RunView,
        board: StateBoard,
        live: AttemptSettings,
        monitors: Monitors,
    ) -> None:
        self._config, self._identity, self._disk, self._live = config, identity, disk, live
        self._pool, self._evals, self._counters, self._health = pool, evals, counters, health
        self._view, self._board, self._monitors = view, board, monitors
        self._history = disk.history
        self._baselines = RunBaselines.resumed(config, disk.state)
        self._announced = -1
        self._echo = frozenset(one.name for one in config.train if one.echo is not None)

    async def run(self, play: Rollout) -> None:
        """Until the last step is trained, committed and evaluated.

        The last checkpoint is saved only when the ranks are told of the end if the run was cut short behind a batch
        that asked for none (``unsaved``).

        Raises:
            RunFailure: nothing to train, or the last checkpoint could not be saved.
        """
        self._live.on_change = play.buffer.wake
        play.buffer.on_filtered = self._disk.episodes.filtered
        self._adopt(play)
        done = False
        while not done:
            if self._live.adopt():
                self._adopt(play)
                await self._board.refresh()
            if play.buffer.next_step <= self._live.last:
                await self._next_batch(play)
            else:
                done = await self._completed()
        play.buffer.discard()

    def unsaved(self, step: int) -> bool:
        """Whether a checkpoint of ``step`` is missing that no batch has asked the ranks for."""
        seal, state = self._disk.store.seal(step), self._disk.committer.state(step)
        return step > self._disk.start_step and state == "waiting" and (seal is None or not seal.checkpoint)

    def check_saved(self, step: int, state: str) -> None:
        """The run's last checkpoint must be there.

        Raises:
            RunFailure: it was abandoned.
        """
        if state == "abandoned":
            reason = self._disk.committer.reason
            raise RunFailure(ExitCode.CRASH, f"the last checkpoint, of step {step}, was not committed: {reason}")

    def _adopt(self, play: Rollout) -> None:
        """Hand the settings in effect to those who act by them. What is sealed is trained, whatever they say."""
        live = self._live
        live.last = max(live.config.max_steps, play.buffer.next_step - 1, self._disk.start_step)
        play.scheduler.adopt(live.config.train, live.last)
        self._evals.adopt(live.config.evals, live.last)
        self._disk.committer.adopt(live.config.checkpoint)

    async def _completed(self) -> bool:
        """Wait for the end of the last step; False: new settings came before."""
        ended = asyncio.create_task(self._last_things(self._live.last))
        changed = asyncio.create_task(self._live.changed())
        try:
            await asyncio.wait({ended, changed}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                ended.result()
            if self._live.waiting:
                return False
            self._live.close(f"the run is over: it ended at step {self._live.last}")
            return True
        finally:
            for task in (ended, changed):
                task.cancel()
            await asyncio.gather(ended, changed, return_exceptions=True)

    async def _last_things(self, last: int) -> None:
        await self._disk.desk.done(last)
        if last > self._disk.start_step and not self.unsaved(last):
            self.check_saved(last, await self._disk.committer.settled(last))
        await self._evals.finished()

    async def _next_batch(self, play: Rollout) -> None:
        """Seal one batch; or none, if new settings came before its episodes were chosen."""
        step = play.buffer.next_step
        episodes = await play.buffer.batch_unless(lambda: self._live.waiting)
        if episodes is None:
            return
        # No await since the episodes were taken: what is saved is the state as of this batch.
        state = self._state(play, step)
        units = units_of(episodes)
        baselines = self._baselines.shipped(units)
        state = replace(state, baselines=baselines.state())
        content = await asyncio.to_thread(compose, units, self._config.batch, self._echo, step=step)
        if content is None:
            log.warning("nothing to train in a batch", step=step, episodes=len(episodes), filters=matched(episodes))
            play.buffer.give_up(episodes)
            return
        _warn(step, units, content)
        since = SinceLastBatch(
            self._counters.new_window(),
            play.buffer.take_filtered(),
            list(dict.fromkeys(rule.name for one in self._config.train for rule in self._config.batch.of(one).filters)),
            play.deck.pools(),
        )
        await self._seal(step, units, content, state, since)
        self._baselines = baselines
        play.buffer.sealed()
        play.scheduler.cancel_hopeless()
        play.scheduler.wake()
        await self._disk.desk.sealed()
        self._health.beat()
        await self._board.refresh()
        await self._disk.episodes.sealed(step, units)

    async def _seal(
        self,
        step: int,
        episodes: list[ReadyEpisode],
        content: Content,
        state: SavedState,
        since: SinceLastBatch,
    ) -> None:
        place = Place(
            identity=self._identity,
            step=step,
            checkpoint=step % self._live.config.checkpoint.interval == 0 or step == self._live.last,
            last=step == self._live.last,
        )
        seal = seal_of(place, content, batch_columns(episodes, content, step, since))
        extended = extend(state, content)

        def write() -> None:
            self._disk.store.write(seal, files(place, content, seal, extended))

        await asyncio.to_thread(write)
        self._history = extended.history
        log.info("sealed", step=step, episodes=len(episodes), tokens=content.trained_tokens, digest=content.digest[:12])

    def _state(self, play: Rollout, step: int) -> SavedState:
        return SavedState(
            run_uid=self._identity.uid,
            attempt=self._identity.attempt,
            step=step,
            deck=play.deck.state(),
            groups=play.scheduler.groups_started,
            history=self._history,
            totals=dict(self._counters.totals),
        )

    # What the trainer sends.

    async def policy(self, announcement: PolicyAnnouncement) -> None:
        """The trainer holds a new version. Repeated announcements do no harm."""
        self._health.beat()
        if announcement.version <= self._announced:
            return
        self._announced = announcement.version
        self._pool.announce(announcement)
        for step in self._disk.store.checkpoint_steps(announcement.version):
            self._disk.committer.expect(step)
        notice = self._disk.desk.notice
        if notice is not None and notice.checkpoint and notice.step <= announcement.version:
            self._disk.committer.expect(notice.step)
        self._evals.reached(announcement.version)
        await self._disk.desk.announced(announcement)
        await self._board.refresh()

    async def step(self, report: StepReport) -> None:
        """A step was trained: its row is in the records when this returns. Repeated reports do no harm."""
        if report.step <= self._disk.desk.reported:
            return
        served = self._pool.served() or (None, None)
        throughput = {
            **self._view.throughput.lap(report.trained_tokens),
            "version/trained": report.step,
            "version/served_min": served[0],
            "version/served_max": served[1],
        }
        row = step_row(self._identity.attempt, report, self._disk.store.counts(report.step), throughput)
        self._view.last_row, self._view.last_step_at = row, time.monotonic()
        self._health.beat()
        await self._disk.recorder.append(STEPS, [row])
        self._monitors.step(row, self._pool.metrics_snapshot())
        await self._disk.desk.step_reported(report.step)
        await self._board.refresh()

    def parts(self, report: PartsReport) -> PartsReply:
        """A rank has written its parts of a checkpoint."""
        self._health.beat()
        return self._disk.committer.report(report)

    async def stop(self) -> StopNotice:
        """Decide where the run stops on request. Idempotent."""
        self._live.close("the run is stopping")
        newest = self._disk.committer.newest
        notice = await self._disk.desk.stop(committed=0 if newest is None else newest.step)
        if notice.checkpoint and (self._disk.desk.trained or 0) >= notice.step:
            self._disk.committer.expect(notice.step)
        await self._board.refresh()
        return notice

    async def evaluated(self, row: dict[str, Any], outcomes: list[EpisodeOutcome]) -> None:
        """An eval is done: record it, and some of its episodes, or all. One that was skipped has a row alone."""
        await self._disk.recorder.append(EVALS, [row])
        if not was_played(row):
            return
        self._monitors.evaluated(row)
        rows = [eval_row(row["step"], self._identity.attempt, one) for one in outcomes[:: max(1, len(outcomes) // 4)]]
        await self._disk.recorder.append(EPISODES, rows[:4])
        self._view.last_evals[row["environment"]] = eval_summary(row)
        self._health.beat()
        await self._board.refresh()
        await self._disk.episodes.evaluated(row["step"], row["environment"], outcomes)


def little_to_train(trainable: int, episodes: int) -> bool:
    """Whether so few of a batch's episodes train that a warning is due: at most a tenth."""
    return trainable <= LITTLE_TO_TRAIN * episodes


def _warn(step: int, episodes: list[ReadyEpisode], content: Content) -> None:
    if little_to_train(content.trainable_episodes, len(episodes)):
        found = {"trainable": content.trainable_episodes, "of": len(episodes), "filters": matched(episodes)}
        log.warning("little to train in a batch", step=step, **found)
