"""Keeps episodes in flight: as many as can still be used, and no more.

    Deck --ticket--> _play_group --(player)--> Group --close--> ready --take_batch--> sealing

Admission: with ``v`` the version that an episode started now would sample with, it may be trained up to step
``v + 1 + maxStaleness``. Groups are started while the episodes that are ready, in flight, or waiting for siblings are
fewer than the batches up to that step need. So little is thrown away, and after every seal and every update the
engines are filled up at once.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog
from echorl_core.config import BatchConfig, EnvironmentConfig
from echorl_core.names import ExitCode

from echorl_orchestrator.cursor import Deck, seed_of
from echorl_orchestrator.groups import Group, ReadyEpisode, close, usable_scores
from echorl_orchestrator.tally import Drop, FailureLimit, RunFailure, Tally
from echorl_orchestrator.types import EpisodeError, EpisodeOutcome, ErrorKind, StopReason

log = structlog.get_logger()

TICK_S = 1.0
"""The longest that a change of the engines' version, of which nobody told us, goes unnoticed."""


class Player(Protocol):
    """Plays one episode; see ``episodes.EpisodePlayer``."""

    async def task(self, environment: EnvironmentConfig, index: int) -> dict[str, object]:
        """Task ``index`` of the environment."""
        ...

    async def play(
        self,
        environment: EnvironmentConfig,
        task: dict[str, object],
        *,
        episode: str,
        group: str,
        seed: int,
        attempt: int,
    ) -> EpisodeOutcome:
        """Play one episode to its end; failures are in the outcome."""
        ...

    async def score_group(
        self, environment: EnvironmentConfig, task: dict[str, object], outcomes: list[EpisodeOutcome]
    ) -> list[float] | None:
        """Rewards of a group's survivors; None if the environment does not score groups."""
        ...


@dataclass(frozen=True)
class Horizon:
    """How far the run goes, for admission."""

    attempt: int
    seed: int
    max_steps: int
    max_empty_batches: int


@dataclass(eq=False)
class _Running:
    group: Group
    version: int
    """Bound at the episode's start: none of its tokens is older."""
    hopeless: bool = False


def capacity(config: BatchConfig, *, version: int, next_step: int, max_steps: int, per_batch: int) -> int:
    """Episodes that may be ready or under way when a group is started at policy version ``version`` (-1: none)."""
    if version < 0:
        return 0
    last = min(version + 1 + config.max_staleness, max_steps)
    return max(0, math.ceil(config.oversampling * per_batch * (last - next_step + 1)))


class Scheduler:
    """Plays train episodes and collects them into ready episodes."""

    def __init__(
        self,
        config: BatchConfig,
        environments: list[EnvironmentConfig],
        *,
        player: Player,
        deck: Deck,
        version: Callable[[], int],
        horizon: Horizon,
        next_step: int,
        groups_started: int,
        tally: Tally,
        failures: FailureLimit,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._config, self._player, self._deck = config, player, deck
        self._environments = {environment.name: environment for environment in environments}
        self._slots = {name: asyncio.Semaphore(one.max_concurrent) for name, one in self._environments.items()}
        self._unfinished: Counter[str] = Counter()
        self._version, self._horizon = version, horizon
        self._tally, self._failures, self._on_progress = tally, failures, on_progress
        self._open: dict[str, Group] = {}
        self._running: dict[asyncio.Task[None], _Running] = {}
        self._wake, self._ready_changed = asyncio.Event(), asyncio.Event()
        self._mean_tokens: float | None = None
        self._filtered_in_a_row = 0
        self.next_step = next_step
        """The next batch to be sealed."""
        self.groups_started = groups_started
        self.ready: list[ReadyEpisode] = []
        """Of closed groups, oldest version first."""

    @property
    def in_flight(self) -> int:
        """Episodes that are being played now."""
        return len(self._running)

    def under_way(self) -> int:
        """Episodes that are ready or may become so."""
        return len(self.ready) + sum(group.pending_or_alive for group in self._open.values())

    def capacity(self) -> int:
        """See the function of the same name."""
        return capacity(
            self._config,
            version=self._version(),
            next_step=self.next_step,
            max_steps=self._horizon.max_steps,
            per_batch=self._episodes_per_batch(),
        )

    def wake(self) -> None:
        """Something changed that admission depends on."""
        self._wake.set()

    async def run(self) -> None:
        """Start groups until cancelled; episodes in flight are then cancelled too.

        Raises:
            ExceptionGroup: holds a RunFailure, or whatever escaped from an episode (a bug).
        """
        async with asyncio.TaskGroup() as tasks:
            while True:
                while self._may_start():
                    self._start(tasks)
                try:
                    async with asyncio.timeout(TICK_S):
                        await self._wake.wait()
                except TimeoutError:
                    continue
                self._wake.clear()

    async def batch(self) -> list[ReadyEpisode]:
        """Wait for the episodes of the next batch; they are taken, oldest first, and ``next_step`` moves on."""
        while (taken := self.take_batch()) is None:
            self._ready_changed.clear()
            await self._ready_changed.wait()
        return taken

    def take_batch(self) -> list[ReadyEpisode] | None:
        """The next batch's episodes, without stale ones; None while there are too few."""
        fresh = [one for one in self.ready if one.staleness(self.next_step) <= self._config.max_staleness]
        if stale := len(self.ready) - len(fresh):
            self._tally.drop(Drop.STALE, stale)
            self._settle([one for one in self.ready if one.staleness(self.next_step) > self._config.max_staleness])
            self.ready = fresh
            self.wake()
        count = self._enough(fresh)
        if count is None:
            return None
        taken, self.ready = fresh[:count], fresh[count:]
        self._settle(taken)
        self.next_step += 1
        self.wake()
        return taken

    def give_up_batch(self, episodes: list[ReadyEpisode]) -> None:
        """The batch just taken has nothing to train: its step is collected again, with other episodes."""
        self._tally.drop(Drop.EMPTY_BATCH, len(episodes))
        self.next_step -= 1
        self.wake()

    def cancel_hopeless(self) -> None:
        """End episodes that started with a version too old for every batch that is still to be sealed."""
        oldest = self.next_step - 1 - self._config.max_staleness
        over = self.next_step > self._horizon.max_steps
        for task, running in self._running.items():
            if (over or running.version < oldest) and not running.hopeless:
                running.hopeless = True
                task.cancel()

    def _enough(self, episodes: list[ReadyEpisode]) -> int | None:
        """How many of the first episodes make a batch; None if all are too few."""
        if self._config.batch_size is not None:
            return self._config.batch_size if len(episodes) >= self._config.batch_size else None
        tokens = 0
        for count, episode in enumerate(episodes, start=1):
            tokens += episode.trainable_tokens()
            if tokens >= (self._config.token_batch_size or 1):
                return count
        return None

    def _episodes_per_batch(self) -> int:
        if self._config.batch_size is not None:
            return self._config.batch_size
        if not self._mean_tokens:
            return self._config.group_size
        needed = math.ceil((self._config.token_batch_size or 1) / self._mean_tokens)
        return max(self._config.group_size, needed)

    def _settle(self, episodes: list[ReadyEpisode]) -> None:
        for episode in episodes:
            self._deck.settle(episode.ticket)

    def _may_start(self) -> bool:
        """Whether a group may start. An environment without a free slot is waited for: the mixture is kept."""
        if self.under_way() >= self.capacity():
            return False
        upcoming = self._deck.upcoming()
        return self._unfinished[upcoming] < self._environments[upcoming].max_concurrent

    def _start(self, tasks: asyncio.TaskGroup) -> None:
        ticket = self._deck.take()
        self.groups_started += 1
        key = f"a{self._horizon.attempt}-g{self.groups_started:06d}"
        seed = seed_of(self._horizon.seed, "task", ticket.environment, ticket.ordinal) % 2**31
        group = Group(key, ticket, self._config.group_size, seed)
        self._open[key] = group
        self._unfinished[ticket.environment] += group.size
        tasks.create_task(self._play_group(group), name=key)

    async def _play_group(self, group: Group) -> None:
        environment = self._environments[group.ticket.environment]
        try:
            task = await self._player.task(environment, group.ticket.index)
        except EpisodeError as error:
            log.warning("task could not be read", group=group.key, index=group.ticket.index, error=str(error))
            task = None
            for index in range(group.size):
                self._ended(group, index, _failed(group, environment, index, error))
        if task is not None:
            async with asyncio.TaskGroup() as episodes:
                for index in range(group.size):
                    episodes.create_task(self._play(group, environment, task, index))
        await self._close(group, environment, task or {})

    async def _play(self, group: Group, environment: EnvironmentConfig, task: dict[str, object], index: int) -> None:
        me = asyncio.current_task()
        assert me is not None  # noqa: S101 - a coroutine runs in a task
        async with self._slots[environment.name]:
            running = _Running(group, max(self._version(), 0))
            self._running[me] = running
            try:
                outcome = await self._player.play(
                    environment,
                    task,
                    episode=f"{group.key}-e{index}",
                    group=group.key,
                    seed=group.seed,
                    attempt=self._horizon.attempt,
                )
            except asyncio.CancelledError:
                if not running.hopeless:
                    raise
                error = EpisodeError(ErrorKind.CANCELLED, "too old for every batch that is still to be sealed")
                outcome = _failed(group, environment, index, error)
            finally:
                del self._running[me]
        self._ended(group, index, outcome)

    def _ended(self, group: Group, index: int, outcome: EpisodeOutcome) -> None:
        kind = group.add(index, outcome)
        self._unfinished[group.ticket.environment] -= 1
        self._tally.outcome(outcome, kind)
        if kind is not None:
            log.info("episode failed", episode=outcome.episode, kind=kind, error=outcome.error)
        self._failures.note(kind, outcome.error)
        self._on_progress()
        self.wake()

    async def _close(self, group: Group, environment: EnvironmentConfig, task: dict[str, object]) -> None:
        fallen, scores = False, None
        if group.survivors:
            fallen, scores = await self._scores(group, environment, task)
        del self._open[group.key]
        if fallen:
            self._tally.drop(Drop.GROUP, len(group.survivors))
        if fallen or not group.survivors:
            self._tally.add("groups/dropped")
            self._deck.settle(group.ticket)
        else:
            self._tally.add("groups/closed")
            self._tally.add("groups/partial", int(group.partial))
            self._admit(close(group, self._config, scores))
        self.wake()

    async def _scores(
        self, group: Group, environment: EnvironmentConfig, task: dict[str, object]
    ) -> tuple[bool, list[float] | None]:
        """Whether a group-scored group falls as a whole, and its scores."""
        try:
            scores = await self._player.score_group(environment, task, group.outcomes())
        except EpisodeError as error:
            log.warning("group could not be scored", group=group.key, error=str(error))
            self._tally.add(f"failures/{error.kind}")
            self._failures.note(error.kind, error.message)
            return True, None
        if scores is None:
            return False, None
        if group.failures:
            return True, None
        if not usable_scores(scores, len(group.survivors)):
            log.warning("group scores cannot be used", group=group.key, scores=scores, accepted=len(group.survivors))
            self._tally.add(f"failures/{ErrorKind.ENV}")
            return True, None
        return False, scores

    def _admit(self, episodes: list[ReadyEpisode]) -> None:
        admitted = 0
        for episode in episodes:
            tokens = episode.trainable_tokens()
            if episode.verdict.hits and not tokens:
                self._tally.drop(Drop.FILTERED)
                self._filtered_in_a_row += 1
                continue
            self._filtered_in_a_row = 0
            # A slow running mean follows episodes that grow longer during training.
            self._mean_tokens = tokens if self._mean_tokens is None else 0.99 * self._mean_tokens + 0.01 * tokens
            self.ready.append(episode)
            admitted += 1
        if not admitted:
            self._settle(episodes)
        if self._filtered_in_a_row >= self._horizon.max_empty_batches * self._episodes_per_batch():
            raise RunFailure(
                ExitCode.NOTHING_TO_TRAIN,
                f"step {self.next_step}: filters left nothing to train in {self._filtered_in_a_row} episodes in a row",
            )
        self.ready.sort(key=lambda one: one.version_low)
        self._ready_changed.set()


def _failed(group: Group, environment: EnvironmentConfig, index: int, error: EpisodeError) -> EpisodeOutcome:
    return EpisodeOutcome(
        episode=f"{group.key}-e{index}",
        environment=environment.name,
        task_key="",
        samples=[],
        reward=None,
        stop=StopReason.ERROR,
        error_kind=error.kind,
        error=error.message,
    )
