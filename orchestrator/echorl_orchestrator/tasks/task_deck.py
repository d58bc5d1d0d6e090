"""Which task comes next: a seeded permutation per epoch, a weighted choice of environment, a cursor of few integers.

A task's *ordinal* counts dispatches of its environment: ordinal ``o`` of a source of ``n`` tasks stands for position
``o % n`` in the permutation of epoch ``o // n``. Everything follows from the seed and the saved integers, so a resumed
run goes on with the same tasks.
"""

import hashlib
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec
import numpy as np
import structlog

from echorl_core.config import CurriculumConfig, EnvironmentConfig
from echorl_orchestrator.tasks.curriculum import Curriculum, Pool

log = structlog.get_logger()


class CursorState(msgspec.Struct, frozen=True, kw_only=True):
    """Where one environment's data stands."""

    next: int
    """First ordinal that was never dispatched."""
    returned: list[int]
    """Ordinals that were dispatched but are part of no sealed batch, ascending."""
    length: int
    """Tasks that the source had."""
    mean_rewards: dict[int, float] = {}
    """Of the last group of each task that was played, by its index; where there is a curriculum."""


class DeckState(msgspec.Struct, frozen=True, kw_only=True):
    """Where the data of all environments stands; the random state is ``draws`` and the run's seed."""

    draws: int
    """Fresh tasks drawn so far, over all environments."""
    cursors: dict[str, CursorState]

    def is_settled(self, environment: str, ordinal: int) -> bool:
        """Whether a task was dispatched, and is not dispatched again by who goes on from here."""
        cursor = self.cursors.get(environment)
        return cursor is not None and ordinal < cursor.next and ordinal not in cursor.returned


@dataclass(frozen=True)
class Ticket:
    """One task to play."""

    environment: str
    ordinal: int
    index: int
    """Into the environment's task source."""
    epoch: int


def seed_of(*parts: object) -> int:
    """A 63-bit seed that depends on every part and on nothing else."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


class Cursor:
    """The order of one environment's tasks."""

    def __init__(
        self,
        *,
        environment: str,
        seed: int,
        length: int,
        state: CursorState | None = None,
        curriculum: CurriculumConfig | None = None,
    ) -> None:
        if length < 1:
            raise ValueError(f"environment {environment!r}: found no tasks, accepted is at least one")
        self._environment, self._seed, self._length = environment, seed, length
        self._permutations: dict[int, np.ndarray] = {}
        self._next = 0
        self._returned: deque[int] = deque()
        self._outstanding: set[int] = set()
        self._told = False
        rewards = state.mean_rewards if state is not None and state.length == length else {}
        self.curriculum = None if curriculum is None else Curriculum(curriculum, length, rewards)
        if state is not None and state.length == length:
            self._next = state.next
            self._returned.extend(sorted(state.returned))
        elif state is not None:
            # Old ordinals would stand for other tasks: go on with the next epoch of the new source.
            self._next = (-(-state.next // state.length)) * length
            log.warning("task source changed its length", environment=environment, before=state.length, now=length)

    @property
    def has_returned(self) -> bool:
        """Whether ``take`` would hand out a task that was dispatched before."""
        return bool(self._returned)

    def take(self) -> Ticket:
        """The next task: returned ones first."""
        ordinal = self._returned.popleft() if self._returned else self._fresh()
        self._outstanding.add(ordinal)
        return Ticket(self._environment, ordinal, self._index(ordinal), ordinal // self._length)

    def settle(self, ordinal: int) -> None:
        """The task's group stands in a sealed batch, or was dropped for good. Settling twice does no harm."""
        self._outstanding.discard(ordinal)

    def state(self) -> CursorState:
        """To go on from, as if tasks that are not settled had never been dispatched."""
        returned = sorted(self._outstanding.union(self._returned))
        means = {} if self.curriculum is None else self.curriculum.means()
        return CursorState(next=self._next, returned=returned, length=self._length, mean_rewards=means)

    def _fresh(self) -> int:
        """The next ordinal; with a curriculum, the next that it deals. Where it deals none, the next all the same."""
        if self.curriculum is None or self._none_is_dealt(self.curriculum):
            self._next += 1
            return self._next - 1
        # Two epochs hold a whole one from any place on, and so every task at least once.
        for _ in range(2 * self._length):
            ordinal, self._next = self._next, self._next + 1
            keep = self.curriculum.keep(self._index(ordinal))
            if keep >= 1.0 or (keep > 0.0 and self._share(ordinal) < keep):
                return ordinal
        return ordinal

    def _none_is_dealt(self, curriculum: Curriculum) -> bool:
        none = curriculum.deals_none()
        if none and not self._told:
            log.warning("the curriculum passes over every task; all are dealt", environment=self._environment)
        self._told = none
        return none

    def _share(self, ordinal: int) -> float:
        return (seed_of(self._seed, "curriculum", self._environment, ordinal) >> 10) / 2**53

    def _index(self, ordinal: int) -> int:
        epoch, position = divmod(ordinal, self._length)
        return int(self._permutation(epoch)[position])

    def _permutation(self, epoch: int) -> np.ndarray:
        if epoch not in self._permutations:
            generator = np.random.default_rng(seed_of(self._seed, "epoch", self._environment, epoch))
            self._permutations[epoch] = generator.permutation(self._length)
            for old in sorted(set(self._permutations) - {epoch})[:-1]:
                del self._permutations[old]
        return self._permutations[epoch]


class TaskDeck:
    """Tasks of all train environments, mixed by weight."""

    def __init__(
        self,
        environments: Sequence[EnvironmentConfig],
        lengths: Mapping[str, int],
        seed: int,
        state: DeckState | None = None,
    ) -> None:
        saved = {} if state is None else state.cursors
        self._seed = seed
        self._names = [environment.name for environment in environments]
        self._bounds = list(accumulate(environment.weight for environment in environments))
        if not self._bounds or self._bounds[-1] <= 0:
            raise ValueError("environments.train: found no environment with a weight above 0")
        self._draws = 0 if state is None else state.draws
        self._cursors = {
            environment.name: Cursor(
                environment=environment.name,
                seed=seed,
                length=lengths[environment.name],
                state=saved.get(environment.name),
                curriculum=environment.curriculum,
            )
            for environment in environments
        }

    def upcoming(self) -> str:
        """Environment of the task that ``take`` hands out next."""
        for name in self._names:
            if self._cursors[name].has_returned:
                return name
        share = (seed_of(self._seed, "environment", self._draws) >> 10) / 2**53
        return self._names[bisect_right(self._bounds, share * self._bounds[-1])]

    def take(self) -> Ticket:
        """The next task."""
        cursor = self._cursors[self.upcoming()]
        if not cursor.has_returned:
            self._draws += 1
        return cursor.take()

    def settle(self, ticket: Ticket) -> None:
        """See ``Cursor.settle``."""
        self._cursors[ticket.environment].settle(ticket.ordinal)

    def note(self, ticket: Ticket, mean_reward: float) -> None:
        """A group of this task has closed with this mean reward."""
        if (curriculum := self._cursors[ticket.environment].curriculum) is not None:
            curriculum.note(ticket.index, mean_reward)

    def pools(self) -> dict[str, dict[Pool, int]]:
        """Tasks in each pool, by environment; of those that have a curriculum."""
        return {name: cursor.curriculum.sizes() for name, cursor in self._cursors.items() if cursor.curriculum}

    def state(self) -> DeckState:
        """Where the data stands, with tasks that are not settled returned."""
        return DeckState(draws=self._draws, cursors={name: cursor.state() for name, cursor in self._cursors.items()})
