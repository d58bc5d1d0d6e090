"""How hard each task is for the policy now, and which tasks are dealt less often for it.

A task's last group decides its pool: ``easy`` from a mean reward of ``easy_from`` on, ``hard`` up to ``hard_to``, else
``normal``; so a task comes back to the pool that it belongs to whenever it is played. A task of the easy or the hard
pool is passed over in an epoch with probability ``1 - keep``, drawn from the run's seed and the task's place in the
data: nothing but the means themselves has to be saved.
"""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from echorl_core.config import CurriculumConfig


class Pool(StrEnum):
    """Tasks that are about as hard as each other."""

    EASY = "easy"
    NORMAL = "normal"
    HARD = "hard"


class Curriculum:
    """The pools of one environment's tasks."""

    def __init__(self, config: CurriculumConfig, length: int, means: Mapping[int, float] | None = None) -> None:
        """``length``: tasks there are; ``means``: what was saved of the same ones."""
        self._config, self._length = config, length
        self._means = dict(means or {})
        self._keep = {Pool.EASY: config.keep_easy, Pool.NORMAL: 1.0, Pool.HARD: config.keep_hard}
        self._played = Counter(self.pool(index) for index in self._means)

    def note(self, index: int, mean_reward: float) -> None:
        """A group of task ``index`` has closed with this mean reward."""
        if index in self._means:
            self._played[self.pool(index)] -= 1
        self._means[index] = mean_reward
        self._played[self.pool(index)] += 1

    def pool(self, index: int) -> Pool:
        """The pool of task ``index``; one that was never played is normal."""
        mean = self._means.get(index)
        if mean is None:
            return Pool.NORMAL
        if mean >= self._config.easy_from:
            return Pool.EASY
        return Pool.HARD if mean <= self._config.hard_to else Pool.NORMAL

    def keep(self, index: int) -> float:
        """Probability with which task ``index`` is dealt when its turn comes."""
        return self._keep[self.pool(index)]

    def deals_none(self) -> bool:
        """Whether every task is in a pool of which none is dealt."""
        return not any(size and self._keep[pool] > 0.0 for pool, size in self.sizes().items())

    def sizes(self) -> dict[Pool, int]:
        """Tasks in each pool."""
        unplayed = self._length - len(self._means)
        return {pool: self._played[pool] + (unplayed if pool is Pool.NORMAL else 0) for pool in Pool}

    def means(self) -> dict[int, float]:
        """Mean rewards by task, as they are saved."""
        return dict(self._means)
