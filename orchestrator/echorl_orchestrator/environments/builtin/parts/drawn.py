"""Tasks drawn from a seed; one in five of all possible ones belongs to the test split."""

import hashlib
import random
from collections.abc import Callable
from typing import Any, Literal

Split = Literal["train", "test"]
_TEST_SHARE = 5


class DrawnTasks:
    """As many tasks as wanted, each from its index. The same one never stands in both splits, and may repeat in one."""

    def __init__(
        self,
        name: str,
        draw: Callable[[random.Random], dict[str, Any]],
        *,
        num_tasks: int,
        seed: int,
        split: Split,
        identity: str = "key",
    ) -> None:
        """``draw`` makes a task of either split; what the task holds under ``identity`` says of which."""
        self._draw, self._identity, self._num_tasks = draw, identity, num_tasks
        self._stream, self._split = f"{name}:{seed}:{split}", split

    def __len__(self) -> int:
        """How many there are."""
        return self._num_tasks

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Task ``index``."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        rng = random.Random(f"{self._stream}:{index}")
        while True:
            task = self._draw(rng)
            is_test = hashlib.sha256(task[self._identity].encode()).digest()[0] % _TEST_SHARE == 0
            if is_test == (self._split == "test"):
                return task
