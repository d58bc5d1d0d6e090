"""The orchestrator: its life and its end. This is the data-flow map of the role.

    tasks.TaskDeck --tickets--> rollout.Scheduler --episodes--> episodes.EpisodePlayer --token ids--> engines.EnginePool
                                     |                          (workers, gateway, codec)                 |  ^
                          GroupScoring (advantages, filters)                                       vLLM <-+  | weights
                                     v                                                                       |
                                ReadyBuffer --batch--> control.Training --compose, seal--> batches.BatchStore
                                                              |                                |
                      records, status, monitors <--rows-- TrainerReports                       | GET /trainer/batch
                                                              ^                                v
                        attempt.Committer <--parts------- HttpApi <------------- attempt.TrainerDesk <--> trainer ranks
                        evals.Evals <--policy versions--------+

Every long-lived task is supervised: if one ends without being asked to, the role ends with its error. A run ends in one
of four ways: finished (every batch trained, the last checkpoint committed, evals done), stopped on request (after a
checkpoint), failed (``RunFailure``: an exit code that is not restarted), or crashed (anything else; the role is started
again and goes on from its newest sealed batch).
"""

import asyncio
import socket
from pathlib import Path

from aiohttp import web

from echorl_core.config import OrchestratorConfig
from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory
from echorl_core.wire.batch import StopNotice
from echorl_orchestrator.attempt.live_settings import AttemptSettings
from echorl_orchestrator.attempt.presence import check_there, worked_before
from echorl_orchestrator.control.endings import Ending, Endings
from echorl_orchestrator.control.http_api import Actions, Api
from echorl_orchestrator.control.listening import listening
from echorl_orchestrator.control.run_parts import RunParts
from echorl_orchestrator.control.supervision import close_all, failure_in, until
from echorl_orchestrator.control.trainer_reports import TrainerReports
from echorl_orchestrator.control.training import Training
from echorl_orchestrator.control.wiring import Secrets, assemble
from echorl_orchestrator.disk_room import DiskRoom

MONITORS_END_S = 20.0
"""How long monitors have for what waits, at the role's end."""


class Orchestrator:
    """One attempt of one run; made by ``opened``."""

    def __init__(self, parts: RunParts, reports: TrainerReports, server: socket.socket, token: str) -> None:
        """``server``: where HTTP is answered; ``token``: of the run's own admin routes."""
        self._parts, self._reports, self._server, self._token = parts, reports, server, token
        self._training, self._endings = Training(parts), Endings(parts, reports)
        self._stop = asyncio.Event()

    @classmethod
    async def opened(cls, config: OrchestratorConfig, identity: RunIdentity, secrets: Secrets) -> "Orchestrator":
        """The role with all its parts, of which none runs yet.

        Raises:
            BadInputError: the port is taken at the run's first start, the attempt was not prepared, or the model cannot
                be used.
            RunFailure: the run directory is gone, or the port is taken after a restart.
            Damage: what the attempt resumes from is not what was committed.
        """
        run = RunDirectory(Path(config.run_dir))
        check_there(run)
        server = await listening(config.host, config.port, restarted=worked_before(run, identity.attempt))
        try:
            # A write would else make a folder again that somebody has deleted.
            room = DiskRoom(before=lambda: check_there(run))
            live = AttemptSettings(config, run.attempt(identity.attempt), room)
            await asyncio.to_thread(live.load)
            parts, reports = await assemble(live, identity, secrets, room)
            return cls(parts, reports, server, secrets.token)
        except BaseException:
            server.close()
            raise

    @property
    def step(self) -> int:
        """The newest trained step."""
        return self._parts.step

    @property
    def reward(self) -> float | None:
        """Its mean reward; None: none is known."""
        return self._parts.reward

    async def leave(self) -> None:
        """After a notice: keep what can be kept; ``run`` is to be cancelled then. Whoever calls bounds it."""
        await self._endings.left(self._training.leave)

    @property
    def problem(self) -> str | None:
        """Why the role is not healthy; None if it is."""
        return self._parts.health.problem()

    async def run(self) -> Ending:
        """Run to an end.

        Raises:
            BadInputError: an environment or hook cannot be used.
            Exception: whatever a supervised task failed with.
        """
        parts = self._parts
        try:
            ending = await self._serve()
            await parts.meter.close()
            if parts.journal is not None:
                await parts.journal.discard()
            return ending
        finally:
            kept = [] if parts.journal is None else [parts.journal]
            await close_all(parts.player, parts.pool, parts.disk.recorder, parts.disk.episodes, *kept)
            await close_all(parts.monitors, deadline_s=MONITORS_END_S)

    async def _serve(self) -> Ending:
        """Answer HTTP, work, and say how it ended before leaving."""
        parts, reports = self._parts, self._reports
        api = self._api()
        app = api.application()
        parts.player.routes(app)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        assert runner.server is not None  # noqa: S101 - it is set up
        try:
            await web.SockSite(runner, self._server).start()
            await parts.pool.start()
            if parts.disk.desk.policy is not None:
                await reports.policy(parts.disk.desk.policy)
            await parts.player.start()
            return await until(
                self._to_the_end(),
                engines=parts.pool.run_forever(),
                episodes=parts.player.run_forever(),
                committer=parts.disk.committer.run(),
                health=parts.health.run(),
                state=parts.board.run(),
                records=parts.disk.recorder.run(),
                episode_records=parts.disk.episodes.run(),
                monitors=parts.monitors.run(),
                volume=parts.volume.run(),
                time=parts.meter.run(parts.pool.metrics_snapshot, parts.board.soon),
                connections=api.connections.run(runner.server),
                **({} if parts.journal is None else {"journal": parts.journal.run()}),
            )
        except Exception as error:
            failure = failure_in(error)
            if failure is None:
                raise
            return await self._endings.failed(failure)
        finally:
            await runner.cleanup()

    def _api(self) -> Api:
        parts, reports = self._parts, self._reports
        return Api(
            parts.identity,
            self._token,
            num_ranks=parts.config.batch.num_ranks,
            desk=parts.disk.desk,
            actions=Actions(
                reports.policy,
                reports.step,
                reports.parts,
                reports.notice,
                reports.restarted,
                self._requested_stop,
                parts.live.accept,
            ),
            board=parts.board,
            health=parts.health,
            registry=parts.metrics.registry,
        )

    async def _to_the_end(self) -> Ending:
        """Work until finished or asked to stop."""
        if self._parts.disk.desk.notice is not None:
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
        play = await self._parts.rollout.load()
        await until(self._training.run(play), scheduler=play.scheduler.run(), evals=self._parts.evals.run())

    async def _requested_stop(self) -> StopNotice:
        notice = await self._reports.stop()
        self._stop.set()
        return notice
