"""Keeps episodes in flight: as many as can still be used, and no more.

    TaskDeck --ticket--> group --(player)--> GroupScoring --> ReadyBuffer --take--> sealing

Admission: with ``v`` the version that an episode started now would sample with, it may be trained up to step
``v + 1 + maxStaleness``. Groups are started while the episodes that are ready, in flight, or waiting for siblings are
fewer than the batches up to that step need. So little is thrown away, and after every seal and every update the
engines are filled up at once.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import structlog

from echorl_core.config import BatchConfig, EnvironmentConfig
from echorl_orchestrator.engines.journal.journal import Playing, TurnJournal
from echorl_orchestrator.engines.journal.parts import TurnKey
from echorl_orchestrator.episode_outcome import EpisodeOutcome, FailedEpisode, StopReason
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.rollout.concurrency import Concurrency
from echorl_orchestrator.rollout.counters import Drop, EpisodeLedger
from echorl_orchestrator.rollout.group_scoring import GroupScoring
from echorl_orchestrator.rollout.groups import Group, as_failed
from echorl_orchestrator.rollout.mode_traits import MODES
from echorl_orchestrator.rollout.player import Player
from echorl_orchestrator.rollout.ready_buffer import ReadyBuffer
from echorl_orchestrator.tasks.task_deck import seed_of

log = structlog.get_logger()

TICK_S = 1.0
"""The longest that a change of the engines' version, of which nobody told us, goes unnoticed."""


@dataclass(frozen=True)
class Horizon:
    """What an attempt's episodes are identified by, and how far the run goes."""

    attempt: int
    seed: int
    max_steps: int
    groups_started: int = 0
    """Over all attempts, before this process."""


@dataclass(eq=False)
class _Running:
    version: int
    """Bound at the episode's start: none of its tokens is older, but those of a journal."""
    replayed: Playing | None = None
    hopeless: bool = False

    def oldest(self) -> int:
        """Lowest version that its tokens may have."""
        low = None if self.replayed is None else self.replayed.version_low
        return self.version if low is None else min(self.version, low)


def capacity(config: BatchConfig, *, version: int, next_step: int, max_steps: int, per_batch: int) -> int:
    """Episodes that may be ready or under way when a group is started at policy version ``version`` (-1: none)."""
    if version < 0:
        return 0
    last = min(version + 1 + config.max_staleness, max_steps)
    return max(0, math.ceil(config.oversampling * per_batch * (last - next_step + 1)))


class Scheduler:
    """Plays train episodes, in groups, and hands closed groups to the buffer."""

    def __init__(
        self,
        config: BatchConfig,
        environments: list[EnvironmentConfig],
        *,
        player: Player,
        buffer: ReadyBuffer,
        scoring: GroupScoring,
        version: Callable[[], int],
        horizon: Horizon,
        ledger: EpisodeLedger,
        concurrency: Concurrency,
        journal: TurnJournal | None = None,
        on_failed: Callable[[int, FailedEpisode], None] = lambda step, episode: None,
    ) -> None:
        """Nothing is played before ``run``.

        Args:
            config: of batches.
            environments: whose episodes are played.
            player: who plays them.
            buffer: gets closed groups.
            scoring: closes them.
            version: that an episode started now would sample with; -1: none.
            horizon: what episodes are identified by, and how far the run goes.
            ledger: hears of every episode that has ended.
            concurrency: bounds episodes in flight by what engines can take.
            journal: is told which episodes are played, by what every process of the attempt knows them by.
            on_failed: gets each one that failed, and the step whose batch was being filled; not those that were
                cancelled.
        """
        self._config, self._mode = config, MODES[config.mode]
        self._player, self._deck, self._buffer, self._scoring = player, buffer.deck, buffer, scoring
        self._environments = {environment.name: environment for environment in environments}
        self._slots = {environment.name: asyncio.Semaphore(environment.max_concurrent) for environment in environments}
        self._unfinished: Counter[str] = Counter()
        self._version, self._horizon, self._ledger, self._on_failed = version, horizon, ledger, on_failed
        self._concurrency, self._journal = concurrency, journal
        self._open: dict[str, Group] = {}
        self._running: dict[asyncio.Task[None], _Running] = {}
        self._wake = asyncio.Event()
        buffer.on_room = self.wake
        self.groups_started = horizon.groups_started
        """Over all attempts of the run; the next group's number is one more."""

    @property
    def in_flight(self) -> int:
        """Episodes that are being played now."""
        return len(self._running)

    def under_way(self) -> int:
        """Episodes that are ready or may become so."""
        return len(self._buffer.ready) + sum(group.pending_or_alive for group in self._open.values())

    def capacity(self) -> int:
        """See the function of the same name."""
        return capacity(
            self._config,
            version=self._version(),
            next_step=self._buffer.next_step,
            max_steps=self._horizon.max_steps,
            per_batch=self._buffer.episodes_per_batch(),
        )

    def adopt(self, environments: list[EnvironmentConfig], max_steps: int) -> None:
        """Groups that start from here on are sampled as these environments say, for batches up to ``max_steps``."""
        self._environments = {environment.name: environment for environment in environments}
        self._horizon = replace(self._horizon, max_steps=max_steps)
        self.cancel_hopeless()
        self.wake()

    def wake(self) -> None:
        """Something changed that admission depends on: a seal, an update of the engines."""
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

    def cancel_hopeless(self) -> None:
        """End episodes that started with a version too old for every batch that is still to be sealed."""
        next_step = self._buffer.next_step
        oldest = next_step - 1 - self._config.max_staleness
        for task, running in self._running.items():
            too_old = running.oldest() < oldest and self._mode.versions
            if (next_step > self._horizon.max_steps or too_old) and not running.hopeless:
                running.hopeless = True
                task.cancel()

    def _may_start(self) -> bool:
        """Whether a group may start. An environment without a free slot is waited for, so that the mixture is kept."""
        if self.under_way() >= self.capacity():
            return False
        upcoming = self._deck.upcoming()
        return self._unfinished[upcoming] < self._environments[upcoming].max_concurrent

    def _start(self, tasks: asyncio.TaskGroup) -> None:
        ticket = self._deck.take()
        self.groups_started += 1
        key = f"a{self._horizon.attempt}-g{self.groups_started:06d}"
        seed = seed_of(self._horizon.seed, "task", ticket.environment, ticket.ordinal) % 2**31
        own = self._config.of(self._environments[ticket.environment])
        group = Group(key, ticket, own.group_size, seed)
        self._open[key] = group
        self._unfinished[ticket.environment] += group.size
        tasks.create_task(self._play_group(group), name=key)

    async def _play_group(self, group: Group) -> None:
        environment = self._environments[group.ticket.environment]
        try:
            task = await self._player.task(environment, group.ticket.index)
        except EpisodeError as error:
            log.warning("task could not be read", group=group.key, index=group.ticket.index, error=str(error))
            for index in range(group.size):
                self._ended(group, index, _failed(group, index, error))
            await self._close(group, environment, {})
            return
        # Slots are handed out in the order of asking, so unfinished groups go on before new ones.
        async with asyncio.TaskGroup() as episodes:
            for index in range(group.size):
                episodes.create_task(self._play(group, environment, task, index))
        await self._close(group, environment, task)

    async def _play(self, group: Group, environment: EnvironmentConfig, task: dict[str, Any], index: int) -> None:
        # An episode that waits has no version yet: none of its tokens can be too old.
        async with self._slots[environment.name], self._concurrency.room(), self._player.room(environment):
            outcome = await self._outcome(group, environment, task, index)
        # Not of one that is cut off: the next process may go on with it.
        if self._journal is not None:
            self._journal.ends(group.episode(index))
        self._ended(group, index, outcome)

    async def _outcome(
        self, group: Group, environment: EnvironmentConfig, task: dict[str, Any], index: int
    ) -> EpisodeOutcome:
        me = asyncio.current_task()
        assert me is not None  # noqa: S101 - a coroutine runs in a task
        running = self._running[me] = _Running(max(self._version(), 0), self._replayed(group, index))
        try:
            return await self._player.play(
                environment,
                task,
                episode=group.episode(index),
                group=group.key,
                seed=group.seed,
                attempt=self._horizon.attempt,
            )
        except asyncio.CancelledError:
            if not running.hopeless:
                raise
            reason = "started with a version too old for every batch that is still to be sealed"
            return _failed(group, index, EpisodeError(ErrorKind.CANCELLED, reason))
        finally:
            del self._running[me]

    def _replayed(self, group: Group, index: int) -> Playing | None:
        if self._journal is None:
            return None
        key = TurnKey(group.ticket.environment, group.ticket.ordinal, index)
        return self._journal.begins(group.episode(index), key, self._buffer.next_step - 1 - self._config.max_staleness)

    def _ended(self, group: Group, index: int, outcome: EpisodeOutcome) -> None:
        kind = group.add(index, outcome)
        self._unfinished[group.ticket.environment] -= 1
        self.wake()
        if kind is not None and kind is not ErrorKind.CANCELLED:
            self._on_failed(self._buffer.next_step, as_failed(outcome, group.key, kind))
        self._ledger.ended(outcome, kind)

    async def _close(self, group: Group, environment: EnvironmentConfig, task: dict[str, Any]) -> None:
        try:
            fallen, ready = await self._scoring.close(group, environment, task)
        finally:
            for lost in group.unscored:
                self._ledger.counters.failed(lost.outcome, lost.kind)
                self._on_failed(self._buffer.next_step, lost)
        if ready:
            self._deck.note(group.ticket, math.fsum(float(unit.outcome.reward or 0.0) for unit in ready) / len(ready))
        del self._open[group.key]
        if fallen:
            self._ledger.counters.drop(Drop.GROUP, group.outcomes())
        if fallen or not group.survivors:
            self._ledger.counters.add("groups/dropped")
            self._deck.settle(group.ticket)
        else:
            self._ledger.counters.add("groups/closed")
            self._ledger.counters.add("groups/partial", int(group.partial))
            if group.partial:
                failed = {str(kind): count for kind, count in sorted(group.failures.items())}
                where = {"group": group.key, "environment": group.ticket.environment}
                log.info("a group closed without some of its episodes", **where, of=group.size, failed=failed)
            self._buffer.admit(ready)
        self.wake()


def _failed(group: Group, index: int, error: EpisodeError) -> EpisodeOutcome:
    return EpisodeOutcome(
        episode=group.episode(index),
        environment=group.ticket.environment,
        task_key="",
        samples=[],
        reward=None,
        stop=StopReason.ERROR,
        error_kind=error.kind,
        error=error.message,
    )
