"""How many engines a run wants: by hand, for any measurements, and over an hour of a small queueing model."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_operator.observed.measurements import Measurement, with_newest
from echorl_operator.plan.autoscaling import (
    FEWER_AFTER_S,
    MORE_AFTER_S,
    Bounds,
    Decision,
    Engines,
    Pace,
    autoscaled,
)
from echorl_testing.operator.queueing import Pipeline, autoscale

BOUNDS = Bounds(1, 8)


def minutes(
    count: int, *, engines: int = 2, waiting: float = 0.0, idle: float = 0.0, **loads: Any
) -> tuple[Measurement, ...]:
    """One a minute, from a minute after 0 on, with a step in each, and equal shares of time in all."""
    return tuple(
        Measurement(
            at=60.0 * number,
            step=number,
            engines=engines,
            trainer_s=60.0 * number,
            trainer_waiting_s=60.0 * number * waiting,
            engines_s=60.0 * engines * number,
            engines_waiting_s=60.0 * engines * number * idle,
            **loads,
        )
        for number in range(1, count + 1)
    )


def wanted(measured: tuple[Measurement, ...], engines: int = 2, bounds: Bounds = BOUNDS, **known: Any) -> Decision:
    return autoscaled(Engines(engines, 0.0, **known), measured, bounds)


@pytest.mark.parametrize(
    ("engines", "waiting", "idle", "most", "expected"),
    [
        (1, 0.66, 0.0, 8, 3),  # 1 / 0.34 = 2.94
        (2, 0.5, 0.0, 8, 4),
        (2, 0.5, 0.0, 3, 3),
        (2, 0.95, 0.0, 100, 8),  # 40, and four times as many at once
        (2, 0.11, 0.0, 8, 3),  # 2.25: one more at the least
        (2, 0.09, 0.0, 8, 2),
        (2, 0.5, 0.5, 8, 2),  # Both wait for each other, or for an environment: 2 * 0.5 / 0.5
        (2, 0.5, 0.4, 8, 3),  # 2.4 of which 2 are there: one more
        (4, 0.5, 0.2, 8, 6),  # 4 * 0.8 / 0.5 = 6.4
    ],
)
def test_more_engines_follow_from_a_trainer_that_waits(
    engines: int, waiting: float, idle: float, most: int, expected: int
) -> None:
    found = wanted(minutes(6, engines=engines, waiting=waiting, idle=idle), engines, Bounds(1, most))
    assert found.wanted == expected
    said = f"with {engines} the trainer waited {waiting:.0%} and engines had no requests {idle:.0%} of 4 min"
    assert found.reason.startswith(said)
    assert found.pace == 1440


@pytest.mark.parametrize(
    ("engines", "waiting", "idle", "least", "expected"),
    [
        (4, 0.0, 0.6, 1, 3),  # 1.6 * 1.15 = 1.84: one at a time
        (4, 0.0, 0.6, 4, 4),
        (4, 0.06, 0.6, 1, 4),
        (3, 0.0, 0.42, 1, 3),  # 1.74 * 1.15 = 2.001
        (3, 0.0, 0.43, 1, 2),  # 1.71 * 1.15 = 1.97
        (16, 0.0, 0.9, 1, 12),  # a quarter at a time
        (1, 0.0, 1.0, 1, 1),
    ],
)
def test_fewer_follow_slowly_from_engines_that_idle(
    engines: int, waiting: float, idle: float, least: int, expected: int
) -> None:
    bounds, shares = Bounds(least, 16), {"engines": engines, "waiting": waiting, "idle": idle}
    assert wanted(minutes(11, **shares), engines, bounds).wanted == engines, "ten minutes are not over"
    assert wanted(minutes(12, **shares), engines, bounds).wanted == expected


def test_fewer_wait_for_twice_the_time_that_an_engine_takes_to_come_back() -> None:
    assert wanted(minutes(12, engines=4, idle=0.6), 4).wanted == 3
    assert wanted(minutes(17, engines=4, idle=0.6), 4, start_s=500.0).wanted == 4
    assert wanted(minutes(19, engines=4, idle=0.6), 4, start_s=500.0).wanted == 3


def test_nothing_is_decided_before_the_new_number_has_served_a_window() -> None:
    before, after = minutes(6, waiting=0.8), minutes(9, engines=5, waiting=0.8)[6:]
    for known in (before, (*before, *after)):
        found = autoscaled(Engines(5, before[-1].at), known, Bounds(1, 99))
        assert (found.wanted, found.reason, found.pace) == (5, "too little is measured with this number yet", 0)
    late = minutes(12, engines=5, waiting=0.8)[6:]
    assert autoscaled(Engines(5, before[-1].at), (*before, *late), Bounds(1, 99)).wanted == 20


def test_engines_that_are_not_there_yet_are_waited_for_unless_fewer_do() -> None:
    found = wanted(minutes(12, engines=2, waiting=0.5), 4)
    assert (found.wanted, found.reason) == (4, "2 of 4 engines serve")
    assert wanted(minutes(12, engines=2, idle=0.7), 4).wanted == 1


def test_no_step_is_no_measurement() -> None:
    stuck = tuple(replace(one, step=3) for one in minutes(30, waiting=0.9))
    assert wanted(stuck).wanted == 2
    assert wanted(()).wanted == 2


def test_engines_with_room_are_tried_one_by_one_and_no_more_when_one_gained_nothing() -> None:
    """Proportion holds for engines that are full: one with half as many requests answers them hardly sooner."""
    room = {"queued": 0.2, "kv_usage": 0.3}
    shares: dict[str, Any] = {"engines": 4, "waiting": 0.6}
    assert wanted(minutes(6, **shares), 4, Bounds(1, 99)).wanted == 10
    assert wanted(minutes(6, **shares, queued=3.0, kv_usage=0.3), 4, Bounds(1, 99)).wanted == 10
    assert wanted(minutes(6, **shares, **room), 4, Bounds(1, 99)).wanted == 5
    # 1440 steps a day: a quarter of the third more that 4 full ones make than 3 is 8.3 %.
    gained = wanted(minutes(6, **shares, **room), 4, Bounds(1, 99), before=Pace(3, 1329))
    assert gained.wanted == 5
    stopped = wanted(minutes(6, **shares, **room), 4, Bounds(1, 99), before=Pace(3, 1330))
    assert stopped.wanted == 4
    assert stopped.reason.endswith("more gained little, and engines could take more requests at once")


def test_bounds_that_have_changed_count_at_once() -> None:
    assert wanted((), 9) == Decision(8, "autoscale allows 1 to 8")
    assert wanted((), 2, Bounds(3, 8)).wanted == 3


def test_with_long_steps_no_more_is_kept_than_they_need() -> None:
    kept: tuple[Measurement, ...] = ()
    for number, one in enumerate(minutes(600)):
        kept = with_newest(kept, replace(one, step=number // 30))
    assert [one.step for one in kept[:4]] == [0, 0, 1, 1]
    assert len(kept) == 40
    assert with_newest(kept, kept[-1]) == with_newest(kept, None) == kept


shares = st.floats(0, 1)
intervals = st.lists(
    st.tuples(st.floats(1, 400), st.integers(0, 4), st.integers(0, 6), shares, shares, shares, shares),
    min_size=1,
    max_size=40,
)


def played(drawn: list[Any], worse: Callable[[Any], Any] = lambda one: one) -> tuple[Measurement, ...]:
    """Measurements of intervals: length, steps, engines, shares of waiting and idle, load."""
    now = Measurement(0.0, 0, 0, 0.0, 0.0, 0.0, 0.0)
    measured: tuple[Measurement, ...] = ()
    for drawn_one in drawn:
        length, steps, engines, waiting, idle, queued, used = worse(drawn_one)
        now = Measurement(
            at=now.at + length,
            step=now.step + steps,
            engines=engines,
            trainer_s=now.trainer_s + length,
            trainer_waiting_s=now.trainer_waiting_s + length * waiting,
            engines_s=now.engines_s + length * engines,
            engines_waiting_s=now.engines_waiting_s + length * engines * idle,
            queued=10 * queued,
            kv_usage=used,
        )
        measured = with_newest(measured, now)
    return measured


@given(drawn=intervals, start=st.integers(1, 6), least=st.integers(1, 4), more=st.integers(0, 8))
def test_it_stays_within_bounds_and_never_changes_twice_within_a_window(
    drawn: list[Any], start: int, least: int, more: int
) -> None:
    bounds = Bounds(least, least + more)
    engines = Engines(bounds.clamped(start), 0.0)
    changes: list[tuple[float, int]] = []
    for end in range(1, len(drawn) + 1):
        measured = played(drawn[:end])
        found = autoscaled(engines, measured, bounds)
        assert bounds.least <= found.wanted <= bounds.most
        if found.wanted != engines.wanted:
            changes.append((measured[-1].at, found.wanted - engines.wanted))
            engines = Engines(found.wanted, measured[-1].at)
    for (first, _), (second, by) in itertools.pairwise(changes):
        assert second - first >= (MORE_AFTER_S if by > 0 else FEWER_AFTER_S)


def steady(drawn: Any) -> tuple[Measurement, ...]:
    engines, waiting, idle, used = drawn
    return minutes(15, engines=engines, waiting=waiting, idle=idle, queued=0.0, kv_usage=used)


loads = st.tuples(st.integers(1, 40), shares, shares, shares)


@given(drawn=loads, share=shares)
def test_a_trainer_that_waits_more_and_engines_that_idle_less_never_get_fewer(drawn: Any, share: float) -> None:
    engines, waiting, idle, used = drawn
    bounds, known = Bounds(1, 64), Engines(engines, 0.0)
    now = autoscaled(known, steady(drawn), bounds).wanted
    assert autoscaled(known, steady((engines, max(waiting, share), idle, used)), bounds).wanted >= now
    assert autoscaled(known, steady((engines, waiting, min(idle, share), used)), bounds).wanted >= now


@given(drawn=loads)
def test_fewer_engines_would_not_be_made_more_of_at_once(drawn: Any) -> None:
    """By the model that is decided by: what the next window shows if load stays as it is."""
    engines, waiting, idle, used = drawn
    found = autoscaled(Engines(engines, 0.0), steady(drawn), Bounds(1, 64)).wanted
    if found < engines:
        demand = engines * (1 - idle) / (1 - waiting)
        then = steady((found, max(0.0, 1 - found / demand) if demand else 0.0, max(0.0, 1 - demand / found), used))
        assert autoscaled(Engines(found, 0.0), then, Bounds(1, 64)).wanted <= found


def constant(tokens: float) -> Callable[[int], float]:
    return lambda _: tokens


def swelling(tokens: float) -> Callable[[int], float]:
    """A third less and a third more, once in the hour."""
    return lambda second: tokens * (1 - math.cos(second / 1800 * math.pi) / 3)


STEADY_FROM = 30
"""Minute from which on a wrong start must be over."""


def paced(pipeline: Pipeline) -> int:
    """Steps from then to the hour's end."""
    return pipeline.steps[59] - pipeline.steps[STEADY_FROM - 1]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("start", "tokens", "train_s", "enough"),
    [
        pytest.param(1, constant(2000.0), 9.0, 4, id="1 of 4"),
        pytest.param(4, constant(2000.0), 19.0, 2, id="4 where 2 do"),
        pytest.param(1, swelling(1500.0), 9.0, 4, id="1, and episodes change"),
        pytest.param(2, constant(2000.0), 19.0, 2, id="as it should be"),
    ],
)
def test_an_hour_of_load(start: int, tokens: Callable[[int], float], train_s: float, enough: int, seed: int) -> None:
    def pipeline(engines: int) -> Pipeline:
        return Pipeline(engines, seed=seed, tokens=tokens, train_s=train_s)

    sized = pipeline(start)
    changes = autoscale(sized, Bounds(1, 6), 60)
    fixed = [pipeline(number) for number in range(1, 7)]
    for one in fixed:
        for _ in range(60):
            one.minute()
    assert paced(sized) >= 0.9 * max(map(paced, fixed)), changes
    assert len(changes) <= 5
    assert len(sized.engines) <= enough, changes
    # Up and down again, or the other way round, once at the most: episodes do the same.
    numbers = [start, *(number for _, number in changes)]
    ways = [after > before for before, after in itertools.pairwise(numbers)]
    assert sum(one is not other for one, other in itertools.pairwise(ways)) <= 1, changes
