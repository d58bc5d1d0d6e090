"""How far a run is, as its orchestrator tells it, and for how long it has not got on."""

import time
from typing import Any


class Progress:
    """What ``GET /state`` said last, and what is to be remembered of what it said before. Times are monotonic."""

    def __init__(self) -> None:
        self.begun = self._moved_at = time.monotonic()
        self.state: dict[str, Any] | None = None
        """Of the present attempt; None before it has told any."""
        self.highest_step = 0
        """That was trained or resumed from, over all attempts."""

    @property
    def step(self) -> int | None:
        """The newest trained one of the present attempt, if it has told any."""
        step: int | None = self._told("step")
        return step

    @property
    def engines(self) -> list[dict[str, Any]]:
        """As the orchestrator sees them."""
        return self._told("engines") or []

    @property
    def failure(self) -> dict[str, Any] | None:
        """Why the orchestrator says that the run failed: ``exit_code`` and ``message``."""
        return self._told("failure") or None

    def note(self, state: dict[str, Any]) -> str | None:
        """Take over a new state; what it says of an abandoned checkpoint, if the one before did not."""
        before = self.state or {}
        self.state = state
        if state.get("step") != before.get("step") or state.get("phase") != before.get("phase"):
            self.moved()
        self.reached(state.get("step") or 0)
        lost: str | None = (state.get("checkpoint") or {}).get("abandoned")
        return lost if lost and lost != (before.get("checkpoint") or {}).get("abandoned") else None

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

    def _told(self, key: str) -> Any:
        return (self.state or {}).get(key)
