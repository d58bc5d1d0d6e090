"""Delays writes of a status that only tells how things go on, such as counts of pods that come and go."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from echorl_operator.observed.runs import RunKey
from echorl_operator.plan.actions import Plan

INTERVAL_S: Final = 2.0
_AT_ONCE = ("phase", "attempt", "revision", "observedGeneration", "control", "restarts", "completionTime")
_COUNTS = frozenset({"TrainerReady", "InferenceReady", "OrchestratorReady"})
"""Conditions that say how many pods of a role are ready."""


class StatusThrottle:
    """Knows when each run's status was written last. What it knows may be lost any time."""

    def __init__(self, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._pace_s, self._clock = interval_s, clock
        self._written_at: dict[RunKey, float] = {}

    def wait_s(self, key: RunKey, before: Mapping[str, Any], made: Plan) -> float:
        """Seconds to wait before this plan's status is written; 0: it is to be written now.

        What later passes rest on, a phase, a problem and whatever an event tells are never kept back.
        """
        if made.fence or made.notes or _essence(made.status) != _essence(before):
            return 0.0
        return max(0.0, self._written_at.get(key, float("-inf")) + self._pace_s - self._clock())

    def written(self, key: RunKey) -> None:
        """Note that the run's status has just been written."""
        self._written_at[key] = self._clock()

    def forget(self, key: RunKey) -> None:
        """Forget a run that is gone."""
        self._written_at.pop(key, None)


def _essence(status: Mapping[str, Any]) -> tuple[list[Any], dict[Any, Any]]:
    problems = (entry for entry in status.get("conditions", []) if entry.get("type") not in _COUNTS)
    return [status.get(field) for field in _AT_ONCE], {entry.get("type"): entry.get("status") for entry in problems}
