"""One process of the orchestrator in an imagined run: real parts around a player whose episodes end in every way."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from echorl_core.config import EnvironmentConfig
from echorl_core.identity import RunIdentity
from echorl_orchestrator.accounting.meter import Meter
from echorl_orchestrator.attempt.disk import read_disk
from echorl_orchestrator.attempt.live_settings import AttemptSettings
from echorl_orchestrator.control.endings import Ending, Endings
from echorl_orchestrator.control.run_parts import RunParts
from echorl_orchestrator.control.supervision import failure_in, until
from echorl_orchestrator.control.trainer_reports import TrainerReports
from echorl_orchestrator.control.training import Training
from echorl_orchestrator.disk_room import DiskRoom
from echorl_orchestrator.engines import EnginePool
from echorl_orchestrator.episode_outcome import EpisodeOutcome
from echorl_orchestrator.evals.evaluation import EvalHorizon, Evals
from echorl_orchestrator.failures import EpisodeError, ErrorKind, FailureLimit
from echorl_orchestrator.monitors.monitors import Monitors
from echorl_orchestrator.rollout.concurrency import Concurrency
from echorl_orchestrator.rollout.counters import Counters, EpisodeLedger
from echorl_orchestrator.rollout.infrastructure_losses import InfrastructureLosses
from echorl_orchestrator.rollout.rollout import Rollout, RolloutStart
from echorl_orchestrator.sandboxes.ledger import SandboxLedger
from echorl_orchestrator.status.health import Health
from echorl_orchestrator.status.metrics_registry import Metrics
from echorl_orchestrator.status.progress import RunEnd, RunProgress
from echorl_orchestrator.status.run_view import RunView
from echorl_orchestrator.status.scrape import Scrape
from echorl_orchestrator.status.state_board import StateBoard
from echorl_orchestrator.status.throughput import Throughput
from echorl_orchestrator.status.volume import Volume
from echorl_testing.orchestrator.scripted_player import outcome

if TYPE_CHECKING:
    from echorl_testing.orchestrator.imagined_run import ImaginedRun

T = TypeVar("T")

TASKS = 3000
"""Of each environment; more than any life plays, so that a task that comes twice is one that was dealt twice."""
FAILURES = [*ErrorKind]


@dataclass
class Played:
    """One episode."""

    group: str
    task: tuple[str, int]
    version: int
    failed: bool = True
    """It did not come to an end that can be trained."""


class OrchestratorLife:
    """One process of the role, as ``control.wiring`` makes it, around an imagined player."""

    def __init__(self, world: "ImaginedRun", identity: RunIdentity) -> None:
        self.calls: set[asyncio.Task[Any]] = set()
        self.killed, self._stop = asyncio.Event(), asyncio.Event()
        room = DiskRoom()
        self.live = AttemptSettings(world.config, world.run.attempt(identity.attempt), room)
        self.live.load()
        config = self.live.config
        disk = read_disk(config, identity, room, lambda: None)
        self.desk, self.disk = disk.desk, disk
        self.counters = Counters(None if disk.state is None else disk.state.totals)
        player, failures = _Player(world), FailureLimit(config.max_consecutive_failures)
        health = Health(longest_silence_s=1e9, busy=lambda: False)
        pool = EnginePool(config, identity, "token", on_update=lambda record: None)
        self.rollout = Rollout(
            config,
            identity.attempt,
            RolloutStart() if disk.state is None else RolloutStart(disk.next_step, disk.state.groups, disk.state.deck),
            player=player,
            version=lambda: world.served,
            trained=lambda: view.step,
            ledger=EpisodeLedger(self.counters, failures, InfrastructureLosses({}), health.beat),
            concurrency=Concurrency(pool.metrics_snapshot),
            on_filtered=disk.episodes.filtered,
            on_failed=disk.episodes.failed,
        )
        evals = Evals(
            [],
            EvalHorizon(identity.attempt, config.seed, config.max_steps, start_step=disk.start_step),
            player=player,
            generator=pool,
            wait_served=_never,
            on_row=_never,
            failures=failures,
        )
        throughput, progress, end = Throughput(self.counters, health), RunProgress(disk.last_row, {}), RunEnd()
        view = RunView(
            config=config,
            identity=identity,
            disk=disk,
            pool=pool,
            evals=evals,
            counters=self.counters,
            throughput=throughput,
            live=self.live,
            rollout=self.rollout,
            sandboxes=SandboxLedger(),
            progress=progress,
            end=end,
            meter=Meter(),
        )
        volume = Volume(disk.run)
        self.parts = RunParts(
            **vars(view),
            player=player,  # type: ignore[arg-type]  # nothing but the rollout plays
            health=health,
            board=StateBoard(view.state),
            monitors=Monitors([]),
            volume=volume,
            metrics=Metrics(Scrape(view, health, volume).reading),
        )
        self.reports = TrainerReports(self.parts)

    async def work(self) -> Ending:
        """To its end, as ``control.orchestrator`` does it."""
        endings = Endings(self.parts, self.reports)
        try:
            if self.desk.policy is not None:
                await self.reports.policy(self.desk.policy)
            return await until(
                self._to_the_end(endings),
                committer=self.disk.committer.run(),
                records=self.disk.recorder.run(),
            )
        except Exception as error:
            failure = failure_in(error)
            if failure is None:
                raise
            return await endings.failed(failure)

    async def _to_the_end(self, endings: Endings) -> Ending:
        if self.desk.notice is not None:
            self._stop.set()
        work, stop = asyncio.create_task(self._work()), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
                return await endings.finished()
        finally:
            for task in (work, stop):
                task.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)
        return await endings.stopped()

    async def _work(self) -> None:
        play = await self.rollout.load()
        await until(Training(self.parts).run(play), scheduler=play.scheduler.run(), evals=self.parts.evals.run())

    async def stop(self) -> None:
        """As ``POST /control/stop`` does."""
        await self.reports.stop()
        self._stop.set()

    async def called(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """One call from outside, which ends with the process."""
        task = asyncio.create_task(make())
        self.calls.add(task)
        try:
            return await task
        finally:
            self.calls.discard(task)
            task.cancel()


class _Player:
    """Plays episodes that end in every way there is."""

    def __init__(self, world: "ImaginedRun") -> None:
        self._world, self._draw = world, world.draw

    async def num_tasks(self, environment: EnvironmentConfig) -> int:
        return TASKS

    def room(self, environment: EnvironmentConfig) -> AbstractAsyncContextManager[object]:
        return contextlib.nullcontext()

    async def task(self, environment: EnvironmentConfig, index: int) -> dict[str, Any]:
        await asyncio.sleep(self._draw.choice([0.0, 0.0, 1.0]))
        if self._draw.random() < 0.02:
            self._world.unreadable.add((environment.name, index))
            raise EpisodeError(ErrorKind.SANDBOX, "no task")
        return {"key": index}

    async def play(
        self, environment: EnvironmentConfig, task: dict[str, Any], *, episode: str, group: str, seed: int, attempt: int
    ) -> EpisodeOutcome:
        world, draw = self._world, self._draw
        world.look()
        played = world.played[episode] = Played(group, (environment.name, task["key"]), max(world.served, 0))
        await asyncio.sleep(draw.choice([0.0, 0.0, draw.uniform(0.0, 20.0), draw.uniform(0.0, 100.0)]))
        error = draw.choice(FAILURES) if draw.random() < 0.1 else None
        reward = draw.choice([0.0, 1.0, 0.5, float("nan") if draw.random() < 0.1 else 0.0])
        found = outcome(
            episode,
            reward=None if draw.random() < 0.03 else reward,
            version=played.version,
            error=error,
            environment=environment.name,
        )
        played.failed = error is not None or (found.reward is not None and math.isnan(found.reward))
        return found

    async def score_group(
        self, environment: EnvironmentConfig, task: dict[str, Any], outcomes: list[EpisodeOutcome]
    ) -> list[float] | None:
        group = self._world.played[outcomes[0].episode].group
        way = self._draw.random()
        if way < 0.8:
            for one in outcomes:
                self._world.played[one.episode].failed |= one.reward is None
            return None
        self._world.fallen.add(group)
        if way < 0.85:
            raise EpisodeError(ErrorKind.TIMEOUT, "too slow")
        return [1.0] * (len(outcomes) if way < 0.95 else 0)

    async def advantages(self, environment: EnvironmentConfig, inputs: Any) -> list[float]:
        raise NotImplementedError

    async def matches(self, environment: EnvironmentConfig, index: int, episodes: Sequence[Any]) -> list[bool]:
        raise NotImplementedError


async def _never(*_: object) -> None:
    raise AssertionError("there are no evals")
