"""How fast the run goes: rates between two steps, for records and state."""

import time
from collections.abc import Callable
from typing import Any

from echorl_orchestrator.rollout.counters import Counters
from echorl_orchestrator.status.health import Health


class Throughput:
    """Rates between two steps, taken from the counters whenever a step is reported."""

    def __init__(self, counters: Counters, health: Health, clock: Callable[[], float] = time.monotonic) -> None:
        self._counters, self._health, self._clock = counters, health, clock
        self._mark = self._now()
        self.sampled_tokens_per_s: float | None = None
        """Sampled tokens per second between the last two steps."""
        self.trained_tokens_per_s: float | None = None
        self.steps = 0
        """Steps that were reported to this process."""
        self.trained_tokens = 0
        """Tokens that were trained in these steps."""

    def lap(self, trained_tokens: int) -> dict[str, Any]:
        """Columns of a step's record: seconds since the last step and what was done in them."""
        self.steps += 1
        self.trained_tokens += trained_tokens
        before, self._mark = self._mark, self._now()
        seconds, idle, sampled = (now - then for now, then in zip(self._mark, before, strict=True))
        self.sampled_tokens_per_s = sampled / seconds if seconds > 0 else None
        self.trained_tokens_per_s = trained_tokens / seconds if seconds > 0 else None
        return {
            "seconds/since_last_step": seconds,
            "seconds/engines_idle": idle,
            "rate/sampled_tokens_per_s": self.sampled_tokens_per_s,
            "rate/overall_trained_tokens_per_s": self.trained_tokens_per_s,
        }

    def _now(self) -> tuple[float, float, float]:
        return self._clock(), self._health.idle_s, float(self._counters.totals["tokens/sampled"])
