"""How far a run is, as its orchestrator tells it, and for how long it has not got on."""

import time
from collections.abc import Sequence

from echorl_core.wire.run_state import EngineView, Failure, RunState


class RunProgress:
    """What ``GET /state`` said last, and what is to be remembered of what it said before. Times are monotonic."""

    def __init__(self) -> None:
        self.begun = self._moved_at = time.monotonic()
        self.state: RunState | None = None
        """Of the present attempt; None before it has told any."""
        self.highest_step = 0
        """That was trained or resumed from, over all attempts."""

    @property
    def step(self) -> int | None:
        """The newest trained one of the present attempt, if it has told any."""
        return None if self.state is None else self.state.step

    @property
    def engines(self) -> Sequence[EngineView]:
        """The engines as the orchestrator sees them."""
        return () if self.state is None else self.state.engines

    @property
    def failure(self) -> Failure | None:
        """Why the orchestrator says that the run failed."""
        return None if self.state is None else self.state.failure

    def note(self, state: RunState) -> str | None:
        """Take over a new state; what it says of an abandoned checkpoint, if the one before did not."""
        before, self.state = self.state, state
        if before is None or (state.step, state.phase) != (before.step, before.phase):
            self.moved()
        self.reached(state.step or 0)
        lost = state.checkpoint.abandoned
        return lost if lost and (before is None or lost != before.checkpoint.abandoned) else None

    def reached(self, step: int) -> None:
        """The run is at ``step`` at least."""
        self.highest_step = max(self.highest_step, step)

    def moved(self) -> None:
        """Count the time without a step from here on."""
        self._moved_at = time.monotonic()

    def silent_s(self, now: float) -> float:
        """For how long there was no step."""
        return now - self._moved_at

    def forget(self) -> None:
        """A new attempt begins: what the one before told is over."""
        self.state = None
