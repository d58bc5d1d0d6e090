"""Scenarios of faults, lived at the same time, each in a namespace of its own; and what came of each."""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from echorl_testing.operator.run_life import Field, Life

RECOVERED_S = 30.0
"""Longest time from the end of a fault until the run is as it would be without it, on a machine that keeps up."""


@dataclass(frozen=True)
class Course:
    """What the scenarios of one campaign share."""

    field: Field
    hold_s: float = 10.0
    """How long an outage lasts."""
    plain_start_s: "asyncio.Future[float] | None" = None
    """How long a run without faults took to start, beside the others."""

    async def patience_s(self) -> float:
        """``RECOVERED_S`` for the operator, and what a run without faults needs to start: the machine's own time."""
        return RECOVERED_S + (await asyncio.shield(self.plain_start_s) if self.plain_start_s else 0.0)

    async def hold(self, life: Life, seconds: float | None = None) -> None:
        """Let a fault last."""
        until, clock = time.monotonic() + (self.hold_s if seconds is None else seconds), time.monotonic
        await life.until("the fault has lasted", lambda: clock() >= until, self.hold_s + 60)


Scenario = Callable[[Course], Awaitable[str]]
"""Raises AssertionError if the run does not come through; returns what was measured, in a few words."""


@dataclass(frozen=True)
class Outcome:
    """What came of one scenario."""

    name: str
    measured: str
    """In a few words; empty if it failed."""
    problem: str
    """Empty if it came through."""
    seconds: float


async def campaign(
    course: Course, scenarios: Mapping[str, Scenario], *, at_once: int, tell: Callable[[Outcome], None]
) -> dict[str, Outcome]:
    """Live all scenarios, so many at a time; ``tell`` gets each outcome at once."""
    turn = asyncio.Semaphore(at_once)

    async def one(name: str, scenario: Scenario) -> Outcome:
        async with turn:
            started = time.monotonic()
            try:
                measured, problem = await scenario(course), ""
            except Exception as error:
                # Whatever it is, the others go on, and the test of this one tells it.
                measured, problem = "", "".join(traceback.format_exception(error))
            outcome = Outcome(name, measured, problem, time.monotonic() - started)
            tell(outcome)
            return outcome

    found = await asyncio.gather(*(one(name, scenario) for name, scenario in scenarios.items()))
    return {outcome.name: outcome for outcome in found}


def unharmed(life: Life, admitted: list[int]) -> None:
    """Fail if the history shows what must never be, or other attempts than these were let through."""
    assert life.problems() == []
    assert life.admitted() == admitted


def same_end(life: Life, reference: Mapping[str, Any], *, but: frozenset[str] = frozenset()) -> None:
    """Fail if a life has ended otherwise than one without faults."""
    end = life.end()
    different = {key: (end[key], value) for key, value in reference.items() if key not in but and end[key] != value}
    assert not different, f"found, and without faults: {different}"
