"""The play of train episodes: a deck of tasks, the scheduler, and the buffer of ready episodes."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from echorl_core.config import OrchestratorConfig
from echorl_orchestrator.engines.journal.journal import TurnJournal
from echorl_orchestrator.episode_outcome import FailedEpisode
from echorl_orchestrator.failures import BadInputError
from echorl_orchestrator.rollout.concurrency import Concurrency
from echorl_orchestrator.rollout.counters import EpisodeLedger
from echorl_orchestrator.rollout.group_scoring import GroupScoring
from echorl_orchestrator.rollout.groups import ReadyEpisode
from echorl_orchestrator.rollout.infrastructure_losses import InfrastructureLosses
from echorl_orchestrator.rollout.mode_traits import MODES
from echorl_orchestrator.rollout.player import Player
from echorl_orchestrator.rollout.ready_buffer import ReadyBuffer
from echorl_orchestrator.rollout.scheduler import Horizon, Scheduler
from echorl_orchestrator.tasks.task_deck import DeckState, TaskDeck


@dataclass(frozen=True)
class RolloutStart:
    """Where the run's data stands when the process begins."""

    next_step: int = 1
    """The batch to collect next."""
    groups: int = 0
    """Groups that were started so far, over all attempts."""
    deck: DeckState | None = None


@dataclass(frozen=True)
class LoadedRollout:
    """What plays, once environments have said how many tasks they have."""

    deck: TaskDeck
    buffer: ReadyBuffer
    scheduler: Scheduler


class Rollout:
    """The play of train episodes of one attempt. Nothing is played before ``load``."""

    def __init__(
        self,
        config: OrchestratorConfig,
        attempt: int,
        start: RolloutStart,
        *,
        player: Player,
        version: Callable[[], int],
        trained: Callable[[], int],
        ledger: EpisodeLedger,
        concurrency: Concurrency,
        journal: TurnJournal | None = None,
        on_filtered: Callable[[int, ReadyEpisode], None],
        on_failed: Callable[[int, FailedEpisode], None],
    ) -> None:
        """``version``: that engines would sample with now; the others: see ``ReadyBuffer`` and ``Scheduler``."""
        self.concurrency, self._journal = concurrency, journal
        self._config, self._attempt, self._start = config, attempt, start
        self._player, self._version, self._ledger, self._on_filtered = player, version, ledger, on_filtered
        self._trained, self._on_failed = trained, on_failed
        self._loaded: LoadedRollout | None = None

    @property
    def loaded(self) -> LoadedRollout | None:
        """The parts; None until environments are loaded."""
        return self._loaded

    @property
    def losses(self) -> InfrastructureLosses:
        """Episodes that failed by no fault of their own."""
        return self._ledger.losses

    @property
    def next_step(self) -> int:
        """The next batch to be sealed."""
        return self._start.next_step if self._loaded is None else self._loaded.buffer.next_step

    @property
    def in_flight(self) -> int:
        """Train episodes that are being played now."""
        return 0 if self._loaded is None else self._loaded.scheduler.in_flight

    @property
    def ready(self) -> int:
        """Episodes that wait for a batch."""
        return 0 if self._loaded is None else len(self._loaded.buffer.ready)

    def wake(self) -> None:
        """Engines or the trainer have changed: look whether groups may be started, and a batch be sealed."""
        if self._loaded is not None:
            self._loaded.scheduler.wake()
            self._loaded.buffer.wake()

    async def load(self) -> LoadedRollout:
        """Make the parts where the saved state left them; the player has started.

        Raises:
            BadInputError: an environment has no tasks, or no weight is above 0.
        """
        config, start = self._config, self._start
        lengths = {environment.name: await self._player.num_tasks(environment) for environment in config.train}
        try:
            deck = TaskDeck(config.train, lengths, config.seed, start.deck)
        except ValueError as error:
            raise BadInputError(str(error)) from error
        buffer = ReadyBuffer(
            config.batch,
            deck=deck,
            counters=self._ledger.counters,
            next_step=start.next_step,
            trained=self._trained,
            max_empty_batches=config.max_empty_batches,
            on_filtered=self._on_filtered,
        )
        scheduler = Scheduler(
            config.batch,
            config.train,
            player=self._player,
            buffer=buffer,
            scoring=GroupScoring(config.batch, player=self._player, ledger=self._ledger, vocab_size=vocab_size(config)),
            # What no policy samples is as good as sampled by the newest one.
            version=self._version if MODES[config.batch.mode].versions else self._trained,
            horizon=Horizon(self._attempt, config.seed, config.max_steps, start.groups),
            ledger=self._ledger,
            concurrency=self.concurrency,
            journal=self._journal,
            on_failed=self._on_failed,
        )
        self._loaded = LoadedRollout(deck, buffer, scheduler)
        return self._loaded


def vocab_size(config: OrchestratorConfig) -> int | None:
    """The size of the model's vocabulary, if a filter asks for it.

    Raises:
        BadInputError: config.json does not tell.
    """
    if all(rule.type != "gibberish" for environment in config.train for rule in config.batch.of(environment).filters):
        return None
    path = Path(config.model.path) / "config.json"
    size = json.loads(path.read_text()).get("vocab_size")
    if type(size) is not int or size < 1:
        raise BadInputError(f"filter gibberish: {path}: found vocab_size {size!r}, accepted is a number from 1")
    return size
