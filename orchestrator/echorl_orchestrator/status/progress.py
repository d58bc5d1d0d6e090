"""What only reports and the end of a run tell: its newest rows, and how it ended. Each has one writer."""

import time
from collections.abc import Mapping
from typing import Any

from echorl_core.names import Phase
from echorl_orchestrator.failures import RunFailure


class RunProgress:
    """The newest rows of the records; written by whoever takes the reports of steps and evals."""

    def __init__(self, last_row: dict[str, Any], last_evals: Mapping[str, dict[str, Any]]) -> None:
        """Go on from what this attempt recorded before the process began."""
        self.last_row = last_row
        """The newest row of steps.jsonl; empty before the first."""
        self.steps_without_rl = _steps_without_rl(None, last_row)
        """Newest steps in a row, as far as this process knows, whose rewards taught nothing; None: none should."""
        self.last_evals = dict(last_evals)
        """The newest row of evals.jsonl of each environment, without examples."""
        self.last_step_at = time.monotonic()
        """When the newest step was reported, on the monotonic clock; before the first, when this was made."""

    def step(self, row: dict[str, Any]) -> None:
        """Take in that a step was reported."""
        self.last_row, self.last_step_at = row, time.monotonic()
        self.steps_without_rl = _steps_without_rl(self.steps_without_rl, row)

    def evaluated(self, environment: str, summary: dict[str, Any]) -> None:
        """Take in that an eval was recorded."""
        self.last_evals[environment] = summary


class RunEnd:
    """How the attempt ended, as far as it has; written by whoever ends it."""

    def __init__(self) -> None:
        self.phase: Phase | None = None
        """How the run has ended; None while it goes on."""
        self.failure: RunFailure | None = None

    def reached(self, phase: Phase) -> None:
        """Note that the run is finished or suspended."""
        self.phase = phase

    def failed(self, failure: RunFailure) -> None:
        """Note that the run cannot go on."""
        self.phase, self.failure = Phase.FAILED, failure


def _steps_without_rl(before: int | None, row: Mapping[str, Any]) -> int | None:
    share = row.get("batch/rl_share")
    return None if share is None else (before or 0) + 1 if share == 0 else 0
