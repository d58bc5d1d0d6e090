"""When the trainer will ask for its next batch, told from how long its last steps took."""

import asyncio
from collections import deque
from statistics import median

WINDOW = 8
"""Steps and seals that count: a step's length changes while episodes grow longer."""
SHARE = 0.9
"""Of the shortest of these steps; a step that ends sooner than that finds its successor's batch not sealed yet."""
SEALS = 2.0
"""How many times the longest of these seals is left beside that."""


class TrainerPace:
    """Tells how long a batch may still wait before it is sealed, so that the trainer does not wait for the seal."""

    def __init__(self) -> None:
        self._asked = 0
        self._given: tuple[int, float] | None = None
        self._steps: deque[float] = deque(maxlen=WINDOW)
        self._seals: deque[float] = deque(maxlen=WINDOW)

    def asked(self, step: int) -> None:
        """A rank asks for the batch of ``step``. Only the first call for a step counts."""
        if step <= self._asked:
            return
        self._asked = step
        if self._given is not None and self._given[0] == step - 1:
            self._steps.append(_now() - self._given[1])

    def given(self, step: int) -> None:
        """The first rank has the batch of ``step`` now."""
        self._given = (step, _now())

    def left_s(self) -> float:
        """Seconds until the step under way is likely to end; 0: none is, or no step was measured yet."""
        if self._given is None or self._asked > self._given[0] or not self._steps:
            return 0.0
        return max(0.0, self._given[1] + median(self._steps) - _now())

    def sealed(self, seconds: float) -> None:
        """A batch was composed and written in ``seconds``."""
        self._seals.append(seconds)

    def due_in_s(self, step: int) -> float:
        """Seconds until the batch of ``step`` is to be sealed, at least 0, if the trainer has the one before it.

        0 where no step was measured yet: then nothing tells when the trainer will ask.
        """
        if self._asked >= step or self._given is None or not self._steps:
            return 0.0
        asks = self._given[1] + SHARE * min(self._steps)
        return max(0.0, asks - SEALS * max(self._seals, default=0.0) - _now())


def _now() -> float:
    return asyncio.get_running_loop().time()
