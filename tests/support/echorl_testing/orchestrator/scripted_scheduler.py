"""A scheduler over a scripted player, with all that it is given."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from echorl_core.config import BatchConfig, EnvironmentConfig
from echorl_orchestrator.engines.journal.journal import TurnJournal
from echorl_orchestrator.episode_outcome import EpisodeOutcome, FailedEpisode
from echorl_orchestrator.failures import ErrorKind, FailureLimit
from echorl_orchestrator.rollout.concurrency import Concurrency
from echorl_orchestrator.rollout.counters import Counters, EpisodeLedger
from echorl_orchestrator.rollout.group_scoring import GroupScoring
from echorl_orchestrator.rollout.groups import ReadyEpisode
from echorl_orchestrator.rollout.infrastructure_losses import InfrastructureLosses
from echorl_orchestrator.rollout.ready_buffer import ReadyBuffer
from echorl_orchestrator.rollout.scheduler import Horizon, Scheduler
from echorl_orchestrator.tasks.task_deck import TaskDeck
from echorl_testing.orchestrator.scripted_player import ScriptedPlayer, environment, eventually, outcome


class Rig:
    """Play of train episodes without engines: ``running``, batches come from ``buffer``."""

    def __init__(
        self,
        config: BatchConfig,
        player: ScriptedPlayer,
        environments: list[EnvironmentConfig] | None = None,
        *,
        max_steps: int = 100,
        limit: int = 1000,
        concurrency: Concurrency | None = None,
        journal: TurnJournal | None = None,
        on_filtered: Callable[[int, ReadyEpisode], None] = lambda step, episode: None,
        on_failed: Callable[[int, FailedEpisode], None] = lambda step, episode: None,
    ) -> None:
        """``limit``: of failures in a row. What the player's engines hold is what the trainer has trained."""
        self.player = player
        self.counters = Counters()
        self.environments = environments or [environment()]
        self.deck = TaskDeck(self.environments, {one.name: player.num for one in self.environments}, 0)
        self.buffer = ReadyBuffer(
            config,
            deck=self.deck,
            counters=self.counters,
            next_step=1,
            trained=lambda: max(player.version, 0),
            max_empty_batches=3,
            on_filtered=on_filtered,
        )
        ledger = EpisodeLedger(self.counters, FailureLimit(limit), InfrastructureLosses({}))
        self.scheduler = Scheduler(
            config,
            self.environments,
            player=player,
            buffer=self.buffer,
            scoring=GroupScoring(config, player=player, ledger=ledger),
            version=lambda: player.version,
            horizon=Horizon(1, 0, max_steps),
            ledger=ledger,
            concurrency=concurrency or Concurrency(dict),
            journal=journal,
            on_failed=on_failed,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Rig"]:
        """The scheduler runs meanwhile."""
        task = asyncio.create_task(self.scheduler.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def idle(self) -> None:
        """Until nothing is played and nothing more may be started."""
        at_rest = lambda: not self.player.playing and self.scheduler.under_way() >= self.scheduler.capacity()  # noqa: E731
        await eventually(at_rest, "the scheduler comes to rest")

    def update(self, version: int) -> None:
        """The trainer has announced ``version``, and engines serve it from now on."""
        self.player.update(version)
        self.scheduler.wake()
        self.buffer.wake()


def failing(*bad: str, kind: ErrorKind = ErrorKind.PROVIDER) -> Callable[[str, str, int], EpisodeOutcome]:
    """A script in which episodes whose names end so fail."""

    def script(episode: str, group: str, version: int) -> EpisodeOutcome:
        error = kind if any(episode.endswith(one) for one in bad) else None
        return outcome(episode, version=version, error=error, reward=float(episode[-1] == "0"))

    return script
