"""Tasks that are numbers: rows of a data set that the environment keeps, or seeds."""

from collections.abc import Sequence
from typing import Any


class NumberedTasks(Sequence[dict[str, Any]]):
    """``count`` tasks, each with a number as its key, from ``first`` on."""

    def __init__(self, first: int, count: int) -> None:
        self._numbers = range(first, first + count)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        return {"key": self._numbers[index]}
