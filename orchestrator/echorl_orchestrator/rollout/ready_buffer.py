"""Ready episodes on their way into batches: which are too old, which make the next batch, which are dropped and why."""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Callable

from echorl_core.config import BatchConfig
from echorl_core.names import ExitCode
from echorl_orchestrator.failures import RunFailure
from echorl_orchestrator.rollout.counters import Counters, Drop
from echorl_orchestrator.rollout.groups import ReadyEpisode, units_of
from echorl_orchestrator.tasks.task_deck import TaskDeck

_MEMORY = 0.99
"""Share of the old running mean of an episode's tokens: it follows, slowly, episodes that grow longer in training."""


class ReadyBuffer:
    """Episodes of closed groups. Every one that comes in is taken by one batch, or counted as dropped."""

    def __init__(
        self,
        config: BatchConfig,
        *,
        deck: TaskDeck,
        counters: Counters,
        next_step: int,
        trained: Callable[[], int],
        max_empty_batches: int,
        on_filtered: Callable[[int, ReadyEpisode], None] = lambda step, episode: None,
    ) -> None:
        """``trained``: the newest step that the trainer has behind it.

        ``on_filtered`` gets each episode that filters keep out of the batch of a step, while it is whole.
        """
        self._config, self._counters, self._on_filtered = config, counters, on_filtered
        self._trained = trained
        self.deck = deck
        """Where tasks come from, and are settled when their episodes are."""
        self._max_empty_batches = max_empty_batches
        self._changed = asyncio.Event()
        self._mean_tokens: float | None = None
        self._idle_in_a_row = self._idle_tokens = 0
        self._empty_in_a_row = 0
        self.on_room: Callable[[], None] = lambda: None
        """Called when more episodes may be started."""
        self.next_step = next_step
        """The next batch to be sealed."""
        self.ready: list[ReadyEpisode] = []
        """Oldest version first, then in the order of starting: by that of closing, long ones would be left over."""
        self._ready_tokens = 0
        """Trainable tokens of the ready episodes; only counted where batches are measured in tokens."""
        self._filtered: list[ReadyEpisode] = []

    def admit(self, episodes: list[ReadyEpisode]) -> None:
        """Take in a closed group's episodes; those of which group-stage filters left nothing are dropped.

        So are those that never had anything to train, where batches are measured in tokens.

        Raises:
            RunFailure: as many episodes in a row as the allowed empty batches hold had nothing to train.
        """
        admitted = []
        for episode in episodes:
            tokens = episode.trainable_tokens()
            # A batch measured in tokens would wait for ever for episodes that add none.
            if not tokens and (episode.filtered or self._config.batch_size is None):
                self._counters.drop(Drop.FILTERED if episode.filtered else Drop.EMPTY_BATCH, [episode.outcome])
                self._keep_for_metrics(episode)
                self._idle_in_a_row += 1
                self._idle_tokens += max(1, episode.outcome.kept_tokens)
                continue
            self._idle_in_a_row = self._idle_tokens = 0
            before = self._mean_tokens
            self._mean_tokens = tokens if before is None else _MEMORY * before + (1 - _MEMORY) * tokens
            admitted.append(episode)
        if not admitted:
            self._settle(episodes)
        if self._idle_in_a_row and self._idle_batches() >= self._max_empty_batches:
            raise RunFailure(
                ExitCode.NOTHING_TO_TRAIN,
                f"step {self.next_step}: {self._idle_in_a_row} episodes in a row had nothing to train; "
                f"filters matched: {matched(self._filtered[-self._idle_in_a_row :])}",
            )
        self._hold(sorted([*self.ready, *admitted], key=lambda episode: (episode.version_low or 0, episode.group)))
        self._changed.set()

    async def batch(self) -> list[ReadyEpisode]:
        """Wait for the next batch's episodes; see ``take``."""
        while (taken := await self.batch_unless(lambda: False, lambda step: 0.0)) is None:
            continue
        return taken

    async def batch_unless(
        self, interrupted: Callable[[], bool], due_in_s: Callable[[int], float]
    ) -> list[ReadyEpisode] | None:
        """Wait until the next batch is due, and for its episodes.

        Args:
            interrupted: asked first, and after each ``wake``; if it says so the answer is None, with nothing taken.
            due_in_s: seconds until the batch of a step is due; infinite: until ``wake``.
        """
        while not interrupted():
            self._drop_stale()
            left = due_in_s(self.next_step)
            if left <= 0 and (taken := self.take()) is not None:
                return taken
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left if 0 < left < math.inf else None):
                    await self._changed.wait()
        return None

    def wake(self) -> None:
        """Look again whether a batch is due, or an interruption: the trainer has moved on, or settings came."""
        self._changed.set()

    def take(self) -> list[ReadyEpisode] | None:
        """The next batch's episodes, oldest first; ``next_step`` moves on. None while there are too few.

        Also None while the next batch lies too far ahead of the trainer: a sealed one takes disk until it is trained,
        and episodes that never grow old would make batches without end. Episodes that have become too old for the
        next batch, and so for every later one, are dropped.
        """
        self._drop_stale()
        count = self._enough()
        if count is None or self.next_step > farthest_batch(self._config, self._trained()):
            return None
        taken = self.ready[:count]
        self._hold(self.ready[count:])
        self._settle(taken)
        self.next_step += 1
        self.on_room()
        return taken

    def _drop_stale(self) -> None:
        limit = self._config.max_staleness
        if stale := [episode for episode in self.ready if episode.staleness(self.next_step) > limit]:
            self._counters.drop(Drop.STALE, [episode.outcome for episode in stale])
            self._settle(stale)
            self._hold([episode for episode in self.ready if episode.staleness(self.next_step) <= limit])
            self.on_room()

    def give_up(self, episodes: list[ReadyEpisode]) -> None:
        """The batch just taken has nothing to train: its step is collected again, with other episodes.

        Raises:
            RunFailure: it was the last allowed try.
        """
        self._counters.drop(Drop.EMPTY_BATCH, [episode.outcome for episode in episodes])
        self.next_step -= 1
        for episode in episodes:
            self._keep_for_metrics(episode)
        self.on_room()
        self._empty_in_a_row += 1
        if self._empty_in_a_row >= self._max_empty_batches:
            raise RunFailure(
                ExitCode.NOTHING_TO_TRAIN,
                f"step {self.next_step}: {self._empty_in_a_row} batches in a row had no trainable token in any "
                f"component; rewards of the last one: {_rewards(episodes)}; filters matched: {matched(episodes)}",
            )

    def take_filtered(self) -> list[ReadyEpisode]:
        """Episodes that filters kept out of batches since this was asked last, without tokens and messages."""
        taken, self._filtered = self._filtered, []
        return taken

    def sealed(self) -> None:
        """Note that the batch just taken was sealed: the count of empty ones begins anew."""
        self._empty_in_a_row = 0

    def discard(self) -> None:
        """Drop what is still ready: the run is over."""
        self._counters.drop(Drop.UNUSED, [episode.outcome for episode in self.ready])
        self.ready = []

    def episodes_per_batch(self) -> int:
        """How many episodes a batch takes; an estimate where batches are measured in tokens."""
        if self._config.batch_size is not None:
            return self._config.batch_size
        if not self._mean_tokens:
            return self._config.group_size
        wanted = self._config.token_batch_size or 1
        estimate = max(self._config.group_size, math.ceil(wanted / self._mean_tokens))
        # Ready ones that are shorter than the mean would else be all that is ever played, and no batch.
        missing = wanted - self._ready_tokens
        return max(estimate, len(self.ready) + math.ceil(missing / self._mean_tokens)) if missing > 0 else estimate

    def _enough(self) -> int | None:
        """How many of the first episodes make a batch; None if all are too few."""
        if self._config.batch_size is not None:
            return self._config.batch_size if len(self.ready) >= self._config.batch_size else None
        tokens = 0
        for count, episode in enumerate(self.ready, start=1):
            tokens += episode.trainable_tokens()
            if tokens >= (self._config.token_batch_size or 1):
                return count
        return None

    def _idle_batches(self) -> float:
        """How many batches the episodes with nothing to train in a row would have made."""
        if self._config.batch_size is not None:
            return self._idle_in_a_row / self._config.batch_size
        # Not by episodes: before the first one that trains nobody knows how many a batch takes.
        return self._idle_tokens / (self._config.token_batch_size or 1)

    def _hold(self, episodes: list[ReadyEpisode]) -> None:
        self.ready = episodes
        if self._config.token_batch_size is not None:
            self._ready_tokens = sum(episode.trainable_tokens() for episode in episodes)

    def _keep_for_metrics(self, episode: ReadyEpisode) -> None:
        """Without what takes memory: there may be many of these to each one that trains."""
        for unit in units_of([episode]):
            self._on_filtered(self.next_step, unit)
        self._filtered.append(episode.without_texts())

    def _settle(self, episodes: list[ReadyEpisode]) -> None:
        for episode in episodes:
            self.deck.settle(episode.ticket)


def farthest_batch(config: BatchConfig, trained: int) -> int:
    """The last batch that may be sealed while the trainer has ``trained`` behind it, in every mode.

    A sample of the newest version is as old there as it may be.
    """
    return trained + 1 + config.max_staleness


def matched(episodes: list[ReadyEpisode]) -> str:
    """How many of these episodes each filter matched, to read."""
    units = units_of(episodes)
    hits = Counter(name for unit in units for name in unit.verdict.hits)
    return ", ".join(f"{name} {count} of {len(units)}" for name, count in sorted(hits.items())) or "none"


def _rewards(episodes: list[ReadyEpisode]) -> str:
    rewards = sorted({unit.outcome.reward for unit in units_of(episodes) if unit.outcome.reward is not None})
    return ", ".join(f"{reward:g}" for reward in rewards[:8]) + (", ..." if len(rewards) > 8 else "")
