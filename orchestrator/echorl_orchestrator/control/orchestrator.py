"""The orchestrator: wiring, life and end. This is the data-flow map of the role.

    cursor.Deck --tickets--> scheduler --episodes--> episodes.EpisodePlayer --token ids--> engines.EnginePool --> vLLM
                                 |                    (casting, gateway, codec, workers)        ^
                              closing (advantages, group filters)                               | weights
                                 v                                                              |
                             collector --batch--> training --compose/seal--> batch_store        |
                                                     |                          | GET /trainer/batch
                         records, state, metrics <---+                          v               |
                                                     |                      trainer_desk <--> trainer ranks
                              committer <--parts-----+-------------------------- http_api <-----+
                              evals <--policy versions

Every long-lived task is supervised: if one ends without being asked to, the role ends with its error. A run ends in one
of four ways: finished (every batch trained, the last checkpoint committed, evals done), stopped on request (after a
checkpoint), failed (``RunFailure``: an exit code that is not restarted), or crashed (anything else; the role is started
again and goes on from its newest sealed batch).
"""

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from echorl_core.config import OrchestratorConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_core.rundir import RunDirectory
from echorl_core.wire import StopNotice
from echorl_orchestrator.attempt.disk import Disk, read_disk
from echorl_orchestrator.attempt.live_settings import AttemptSettings
from echorl_orchestrator.control.endings import Ending, Endings
from echorl_orchestrator.control.http_api import Actions, Api
from echorl_orchestrator.control.supervision import failure_in, until
from echorl_orchestrator.control.training import Training
from echorl_orchestrator.control.wiring import bind, end
from echorl_orchestrator.engines import EnginePool
from echorl_orchestrator.episodes.multi_agent.endpoint import NO_KEYS
from echorl_orchestrator.episodes.player import EpisodePlayer, build_player
from echorl_orchestrator.evals.evaluation import EvalHorizon, Evals
from echorl_orchestrator.failures import FailureLimit
from echorl_orchestrator.monitors.feed import Feed
from echorl_orchestrator.monitors.monitors import Monitors, launches
from echorl_orchestrator.records.recorder import UPDATES
from echorl_orchestrator.rollout.counters import Counters
from echorl_orchestrator.rollout.rollout import build_rollout
from echorl_orchestrator.status.health import Health
from echorl_orchestrator.status.metrics_registry import Metrics
from echorl_orchestrator.status.run_view import RunView
from echorl_orchestrator.status.scrape import Scrape
from echorl_orchestrator.status.state_board import StateBoard
from echorl_orchestrator.status.throughput import Throughput
from echorl_orchestrator.status.volume import Volume

MONITORS_END_S = 20.0
"""How long monitors have for what waits, at the role's end."""


class Orchestrator:
    """One attempt of one run."""

    def __init__(
        self,
        config: OrchestratorConfig,
        identity: RunIdentity,
        token: str,
        teacher_key: str | None = None,
        *,
        wandb_key: str | None = None,
        seat_keys: Mapping[str, str] = NO_KEYS,
    ) -> None:
        """``token``: of the run's own admin routes; keys: of the teacher, of W&B, of endpoints that play members."""
        self._config, self._identity, self._token, self._teacher_key = config, identity, token, teacher_key
        self._seat_keys = seat_keys
        self._live = AttemptSettings(config, RunDirectory(Path(config.run_dir)).attempt(identity.attempt))
        self._monitors = Monitors([Feed(launch) for launch in launches(config, identity, wandb_key)])
        self._stop = asyncio.Event()
        self.ending = ""
        """One sentence: how the run ended, as far as it has."""

    @property
    def step(self) -> int | None:
        """The newest trained step; None before the run directory was read."""
        view = getattr(self, "_view", None)
        return None if view is None else int(view.step)

    async def run(self) -> ExitCode:
        """Run to an end; the exit code says which.

        Raises:
            BadInputError: the port is taken, or a model, environment or hook cannot be used.
            Exception: whatever a supervised task failed with.
        """
        listening = bind(self._config.host, self._config.port)
        try:
            await asyncio.to_thread(self._live.load)
            self._config = self._live.config
            disk = await asyncio.to_thread(read_disk, self._config, self._identity, self._refresh_soon)
        except BaseException:
            listening.close()
            raise
        pool = EnginePool(self._config, self._identity, self._token, on_update=self._engine_updated)
        player = build_player(self._config, self._identity, pool, self._teacher_key, seat_keys=self._seat_keys)
        self._assemble(disk, pool, player)
        try:
            ended = await self._serve(listening, disk, pool, player)
        finally:
            await end(player, pool, disk.recorder, disk.episodes)
            await end(self._monitors, deadline_s=MONITORS_END_S)
        self.ending = ended.words
        return ended.code

    def _assemble(self, disk: Disk, pool: EnginePool, player: EpisodePlayer) -> None:
        config, identity = self._config, self._identity
        self._counters = Counters(None if disk.state is None else disk.state.totals)
        self._failures = FailureLimit(config.max_consecutive_failures)
        played = [*config.train, *(one.environment for one in config.evals)]
        slowest = max(((1 + one.max_retries) * one.episode_timeout_s for one in played), default=0.0)
        self._health = Health(longest_silence_s=slowest + config.update_deadline_s, busy=self._busy)
        self._evals = Evals(
            configs=config.evals,
            player=player,
            generator=pool,
            wait_served=self._wait_served,
            on_row=self._evaluated,
            failures=self._failures,
            horizon=EvalHorizon(identity.attempt, config.seed, config.max_steps),
            start_step=disk.start_step,
            done=set(disk.evals.played),
            recorded_skips=set(disk.evals.skipped),
            on_progress=self._health.beat,
        )
        self._pool, self._player, self._disk = pool, player, disk
        self._view = RunView(
            config=config,
            identity=identity,
            disk=disk,
            pool=pool,
            evals=self._evals,
            counters=self._counters,
            throughput=Throughput(self._counters, self._health),
            health=self._health,
            live=self._live,
            last_row=disk.last_row,
            last_evals=disk.last_evals,
        )
        self._volume = Volume(disk.run.root)
        self._metrics = Metrics(Scrape(self._view, self._health, self._volume).reading)
        self._board = StateBoard(self._view.state)
        self._training = Training(
            config,
            identity,
            disk=disk,
            pool=pool,
            evals=self._evals,
            counters=self._counters,
            health=self._health,
            view=self._view,
            board=self._board,
            live=self._live,
            monitors=self._monitors,
        )
        self._endings = Endings(disk, self._training, view=self._view, board=self._board, live=self._live)

    async def _serve(self, listening: socket.socket, disk: Disk, pool: EnginePool, player: EpisodePlayer) -> Ending:
        """Answer HTTP, work, and say how it ended before leaving."""
        training = self._training
        api = Api(
            self._identity,
            self._token,
            num_ranks=self._config.batch.num_ranks,
            desk=disk.desk,
            actions=Actions(training.policy, training.step, training.parts, self._requested_stop, self._live.accept),
            board=self._board,
            health=self._health,
            registry=self._metrics.registry,
        )
        app = api.application()
        player.routes(app)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.SockSite(runner, listening).start()
            await pool.start()
            if disk.desk.policy is not None:
                await training.policy(disk.desk.policy)
            await player.start()
            return await until(
                self._to_the_end(),
                engines=pool.run_forever(),
                episodes=player.run_forever(),
                committer=disk.committer.run(),
                health=self._health.run(),
                state=self._board.run(),
                records=disk.recorder.run(),
                episode_records=disk.episodes.run(),
                monitors=self._monitors.run(),
                volume=self._volume.run(),
            )
        except Exception as error:
            failure = failure_in(error)
            if failure is None:
                raise
            return await self._endings.failed(failure)
        finally:
            await runner.cleanup()

    async def _to_the_end(self) -> Ending:
        """Work until finished or asked to stop."""
        if self._disk.desk.notice is not None:
            self._stop.set()
        work = asyncio.create_task(self._work())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
                return await self._endings.finished()
        finally:
            for task in (work, stop):
                task.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)
        return await self._endings.stopped()

    async def _work(self) -> None:
        self._view.play = play = await build_rollout(
            self._config,
            self._identity,
            self._disk,
            player=self._player,
            pool=self._pool,
            counters=self._counters,
            failures=self._failures,
            on_progress=self._health.beat,
        )
        await until(self._training.run(play), scheduler=play.scheduler.run(), evals=self._evals.run())

    async def _requested_stop(self) -> StopNotice:
        notice = await self._training.stop()
        self._stop.set()
        return notice

    async def _evaluated(self, row: dict[str, Any], outcomes: list[Any]) -> None:
        await self._training.evaluated(row, outcomes)

    async def _wait_served(self, version: int) -> None:
        # Engines may need a restart on the way; what takes longer than this is a failure that must be seen.
        await self._pool.wait_served(version, 3 * self._config.update_deadline_s)

    def _busy(self) -> bool:
        return self._view.in_flight > 0

    def _engine_updated(self, record: dict[str, Any]) -> None:
        self._metrics.engine_updated(record)
        self._disk.recorder.later(UPDATES, record)
        if self._view.play is not None:
            self._view.play.scheduler.wake()
        self._refresh_soon()

    def _refresh_soon(self) -> None:
        self._board.soon()
