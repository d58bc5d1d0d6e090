"""A share of tasks kept out of training, chosen by a hash of each task's key."""

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

from echorl_orchestrator.environments.contract import TaskSource
from echorl_orchestrator.failures import BadInputError


def is_held_out(key: int | str, *, fraction: float, seed: int) -> bool:
    """Whether the task belongs to the eval side. ``1`` and ``"1"`` are different keys."""
    digest = hashlib.sha256(f"{seed}:{type(key).__name__}:{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def task_key(task: Any, index: int) -> int | str:
    """The identity of a task.

    Raises:
        BadInputError: no dict with an int or str under ``key``.
    """
    key = task.get("key") if isinstance(task, dict) else None
    if isinstance(key, bool) or not isinstance(key, (int, str)):
        found = repr(key) if isinstance(task, dict) else type(task).__name__
        raise BadInputError(f"task {index}: key: found {found}, accepted is an int or a str")
    return key


@dataclass(frozen=True)
class HeldOutTasks:
    """The tasks of one side, numbered anew from 0."""

    source: TaskSource
    indices: list[int]

    def __len__(self) -> int:
        """How many tasks this side has."""
        return len(self.indices)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Task ``index`` of this side."""
        return self.source[self.indices[index]]


def one_side(source: TaskSource, *, fraction: float, seed: int, side: Literal["train", "eval"]) -> HeldOutTasks:
    """The tasks of ``side``; the other side gets the rest."""
    wanted = side == "eval"
    keys = (task_key(source[index], index) for index in range(len(source)))
    chosen = [index for index, key in enumerate(keys) if is_held_out(key, fraction=fraction, seed=seed) == wanted]
    return HeldOutTasks(source, chosen)
