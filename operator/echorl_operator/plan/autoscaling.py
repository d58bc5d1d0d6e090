"""How many engines a run wants, from what is measured of it. Pure; the clock is that of the measurements.

The trainer should have a batch whenever it wants one, from as few engines as that takes. With n engines that have
requests for a share b of their time, and a trainer that waits for a share w of its own, it takes about

    demand = n * b / (1 - w)

engines: those that are there, less what they idle, as many times over as the trainer could train more. More engines
follow fast from a trainer that waits, fewer slowly from engines that idle beside one that does not. Between the two
bounds nothing changes, and after a change nothing is decided until the new number has served for a whole window.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from echorl_operator.diagnosis.durations import span
from echorl_operator.observed.measurements import Measurement

MORE_AFTER_S, MORE_AFTER_STEPS = 240.0, 2
"""Shortest window that more engines follow from."""
FEWER_AFTER_S, FEWER_AFTER_STEPS = 600.0, 5
"""Shortest window that fewer follow from; twice the time that a new engine needs, if that is longer."""
WAITS = 0.10
"""The trainer's share of waiting from which on more engines are wanted."""
SELDOM = 0.05
"""That below which fewer may do."""
SPARE = 1.15
"""Fewer engines must be so many times the demand: between them and more lies room for noise."""
LARGEST_FACTOR = 4
"""The most that one change multiplies engines by."""
ROOM_IN_CACHE = 0.5
"""Share of the KV cache in use below which engines without a queue could take more requests."""
LEAST_GAIN = 0.25
"""Share of what engines that were full would have gained by the last change, below which one more is not tried."""
FASTEST = 10**9
"""Most steps a day that are believed: status keeps them."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """``spec.inference.autoscale``."""

    least: int
    most: int

    def clamped(self, engines: int) -> int:
        """The nearest number within."""
        return min(self.most, max(self.least, engines))


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a run was with another number of engines."""

    engines: int
    steps_per_day: int


@dataclass(frozen=True, slots=True)
class Engines:
    """The run's engines."""

    wanted: int
    since: float
    """When that number was decided, in seconds since the epoch."""
    start_s: float = 0.0
    """What a new one needs until it is ready; 0: unknown."""
    before: Pace | None = None
    """The run with fewer engines, before they became more; None: they did not."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How many engines there should be."""

    wanted: int
    reason: str
    """One sentence, without a full stop."""
    pace: int = 0
    """Steps a day in the window that the decision rests on; 0: there is none."""


@dataclass(frozen=True, slots=True)
class _Window:
    """Shares of time with one number of engines."""

    engines: int
    span_s: float
    steps: int
    waiting: float
    """Of the trainer."""
    idle: float
    """Of engines."""
    has_room: bool
    """Engines could take more requests at once."""

    @property
    def demand(self) -> float:
        return self.engines * (1 - self.idle) / max(1 - self.waiting, 1 / 64)

    @property
    def pace(self) -> int:
        return min(FASTEST, round(86_400 * self.steps / self.span_s))

    @property
    def words(self) -> str:
        shares = f"the trainer waited {self.waiting:.0%} and engines had no requests {self.idle:.0%}"
        return f"with {self.engines} {shares} of {span(self.span_s)}"


def autoscaled(engines: Engines, measured: Sequence[Measurement], bounds: Bounds) -> Decision:
    """The number of engines that a run wants now.

    Args:
        engines: what was decided before.
        measured: oldest first; not beyond a restart of the orchestrator.
        bounds: that the number stays within.
    """
    wanted = engines.wanted
    if (within := bounds.clamped(wanted)) != wanted:
        return Decision(within, f"autoscale allows {bounds.least} to {bounds.most}")
    settled = _settled(engines, measured)
    serving = settled[-1].engines if settled else None
    if serving is None or serving > wanted:
        return Decision(wanted, "too little is measured with this number yet")
    window = _window(settled, MORE_AFTER_S, MORE_AFTER_STEPS)
    patience_s = max(FEWER_AFTER_S, 2 * engines.start_s)
    longer = _window(settled, patience_s, FEWER_AFTER_STEPS)
    if longer is not None and (fewer := _fewer(longer, bounds)) < serving:
        return Decision(fewer, longer.words, longer.pace)
    if serving < wanted:
        return Decision(wanted, f"{serving} of {wanted} engines serve")
    if window is None:
        return Decision(wanted, "too little is measured with this number yet")
    return _more(window, engines, bounds)


def _more(window: _Window, engines: Engines, bounds: Bounds) -> Decision:
    """More engines for a trainer that waits for them, or as many as before."""
    serving = engines.wanted
    if window.waiting < WAITS or window.demand < serving * (1 + WAITS):
        return Decision(serving, window.words, window.pace)
    more = min(max(serving + 1, round(window.demand)), LARGEST_FACTOR * serving)
    if window.has_room:
        # Their requests are answered hardly faster by more engines: one is tried.
        more = serving + 1
        if engines.before is not None and not _has_gained(engines.before, window):
            words = f"{window.words}; more gained little, and engines could take more requests at once"
            return Decision(serving, words, window.pace)
    if serving == bounds.most:
        return Decision(serving, f"{window.words}; autoscale allows no more", window.pace)
    return Decision(min(more, bounds.most), window.words, window.pace)


def _fewer(window: _Window, bounds: Bounds) -> int:
    """As many engines as still do, at most a quarter less; those that there are if none can be spared."""
    serving = window.engines
    if window.waiting >= SELDOM:
        return serving
    at_least = max(math.ceil(window.demand * SPARE), serving - max(1, serving // 4), bounds.least)
    return min(serving, at_least)


def _has_gained(before: Pace, now: _Window) -> bool:
    """Whether the last engines made the run faster, by a part at least of what full ones would have."""
    gained = now.pace / max(1, before.steps_per_day) - 1
    return before.engines >= now.engines or gained >= LEAST_GAIN * (now.engines / before.engines - 1)


def _settled(engines: Engines, measured: Sequence[Measurement]) -> Sequence[Measurement]:
    """The newest measurements with one number of engines, from the first step on that was made with them."""
    first = len(measured)
    while first and measured[first - 1].at > engines.since and measured[first - 1].engines == measured[-1].engines:
        first -= 1
    same = measured[first:]
    made = next((index for index, one in enumerate(same) if one.step > same[0].step), len(same))
    return same[made:]


def _window(settled: Sequence[Measurement], span_s: float, steps: int) -> _Window | None:
    """The newest part that is long enough; None if there is none, or it says nothing of one of the two roles."""
    if not settled:
        return None
    last = settled[-1]
    enough = (one for one in reversed(settled) if last.at - one.at >= span_s and last.step - one.step >= steps)
    if (first := next(enough, None)) is None:
        return None
    trainer_s, engines_s = last.trainer_s - first.trainer_s, last.engines_s - first.engines_s
    if trainer_s <= 0 or engines_s <= 0:
        return None
    within = [one for one in settled if one.at > first.at]
    queued, used = (_mean([getattr(one, key) for one in within]) for key in ("queued", "kv_usage"))
    return _Window(
        engines=last.engines,
        span_s=last.at - first.at,
        steps=last.step - first.step,
        waiting=_share(last.trainer_waiting_s - first.trainer_waiting_s, trainer_s),
        idle=_share(last.engines_waiting_s - first.engines_waiting_s, engines_s),
        has_room=queued is not None and used is not None and queued < 1 and used < ROOM_IN_CACHE,
    )


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
