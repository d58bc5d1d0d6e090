"""Role-conditioned advantage estimation: running baselines of the seats of a game (SPIRAL, arXiv:2506.24119).

In a game between copies of one policy, the mean over a group says nothing about a seat's own prospects: who moves
first may simply win more often. So each member has baselines of its own: one for every task (``per="task"``), or one
over all tasks of the environment (``per="member"``), for tasks that are too many to come again often:

    updateThenSubtract   b <- m * b + (1 - m) * R;   A = R - b        (SPIRAL, algorithm 1)
    subtractThenUpdate   A = R - b;   b <- m * b + (1 - m) * R

Baselines start at 0 and move in the order of the calls. As ``R - (m b + (1 - m) R) = m (R - b)``, the first gives
exactly m times the advantage of the second, with the same baselines.
"""

import math
from typing import Literal

import msgspec

Order = Literal["updateThenSubtract", "subtractThenUpdate"]
Per = Literal["task", "member"]
Key = tuple[str, int | str | None, str]
"""Environment, task key (1 and "1" are two tasks; None: all tasks), member."""


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """One running mean, as it is saved."""

    environment: str
    task: int | str | None
    """None: of all tasks."""
    member: str
    value: float


class BaselineState(msgspec.Struct, frozen=True, kw_only=True):
    """All running means of a run as of a batch: msgpack, a part of the orchestrator's state in checkpoints."""

    schema: Literal[1] = 1
    baselines: list[Baseline]
    """Sorted, so that equal baselines are equal bytes."""


class MissingBaselines(ValueError):
    """A run goes on from a checkpoint that has no baselines."""


class Baselines:
    """The running means of a run's rewards that RAE subtracts, by environment, task and member."""

    def __init__(self, *, per: Per = "task", momentum: float = 0.9, order: Order = "updateThenSubtract") -> None:
        """``momentum``: share of the old baseline that stays, from 0 to below 1.

        Raises:
            ValueError: a momentum outside that range.
        """
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum: found {momentum}, accepted is a number from 0 to below 1")
        self._per, self._momentum, self._order = per, momentum, order
        self._values: dict[Key, float] = {}

    @classmethod
    def resumed(
        cls,
        state: BaselineState | None,
        *,
        per: Per = "task",
        momentum: float = 0.9,
        order: Order = "updateThenSubtract",
    ) -> "Baselines":
        """Where a checkpoint left them.

        Raises:
            MissingBaselines: there is no state: starting anew at 0 would give every seat a false advantage.
            ValueError: a baseline is there twice, is not finite, or is not one per ``per``.
        """
        if state is None:
            raise MissingBaselines("the checkpoint to resume from has no RAE baselines")
        made = cls(per=per, momentum=momentum, order=order)
        for baseline in state.baselines:
            key = (baseline.environment, baseline.task, baseline.member)
            if (saved := "member" if baseline.task is None else "task") != per:
                raise ValueError(f"baseline of {_told(key)}: found one per {saved}, accepted is one per {per}")
            if key in made._values or not math.isfinite(baseline.value):
                value = f"{baseline.value:g} or a second one"
                raise ValueError(f"baseline of {_told(key)}: found {value}, accepted is one finite number")
            made._values[key] = baseline.value
        return made

    def advantage(self, environment: str, task: int | str, member: str, reward: float) -> float:
        """Advantage of one member's trajectory; moves the baseline. Call it in the order of shipping.

        Failed episodes are not asked about, and so move nothing.

        Raises:
            ValueError: the reward is not finite.
        """
        key = self._key(environment, task, member)
        if not math.isfinite(reward):
            raise ValueError(f"reward of {_told(key)}: found {reward}, accepted is a finite number")
        before = self.value(environment, task, member)
        after = self._momentum * before + (1 - self._momentum) * reward
        self._values[key] = after
        return reward - (after if self._order == "updateThenSubtract" else before)

    def copy(self) -> "Baselines":
        """The same means, to be moved on their own."""
        made = Baselines(per=self._per, momentum=self._momentum, order=self._order)
        made._values = dict(self._values)
        return made

    def value(self, environment: str, task: int | str, member: str) -> float:
        """The baseline as it stands; 0 before the first reward."""
        return self._values.get(self._key(environment, task, member), 0.0)

    def _key(self, environment: str, task: int | str, member: str) -> Key:
        return environment, task if self._per == "task" else None, member

    def state(self) -> BaselineState:
        """What a checkpoint keeps of them, sorted."""
        # Tasks of both types have no order among themselves.
        keys = sorted(self._values, key=lambda key: (key[0], str(key[1]), isinstance(key[1], str), key[2]))
        return BaselineState(
            baselines=[
                Baseline(environment=key[0], task=key[1], member=key[2], value=self._values[key]) for key in keys
            ]
        )


def _told(key: Key) -> str:
    environment, task, member = key
    where = "all tasks" if task is None else f"task {task!r}"
    return f"environment {environment}, {where}, member {member}"
