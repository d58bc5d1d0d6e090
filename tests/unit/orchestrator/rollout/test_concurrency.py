"""The bound on episodes in flight that follows what engines tell."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_orchestrator.rollout.concurrency import FEWEST, Concurrency, bounded
from echorl_testing.orchestrator.scripted_player import ScriptedPlayer, batch_config, eventually
from echorl_testing.orchestrator.scripted_scheduler import Rig


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("limit", "in_flight", "overloaded", "roomy", "after"),
    [
        (None, 512, False, True, None),
        (None, 512, True, False, 409),
        (409, 500, True, False, 409),  # the cut before has not been reached yet
        (409, 409, True, False, 327),
        (20, 18, True, False, FEWEST),
        (409, 409, False, False, 409),
        (409, 409, False, True, 512),  # 511.25
        (409, 300, False, True, 409),  # something else holds episodes back
    ],
)
def test_numbers(limit: int | None, in_flight: int, overloaded: bool, roomy: bool, after: int | None) -> None:
    assert bounded(limit, in_flight, overloaded=overloaded, roomy=roomy) == after


@given(
    limit=st.none() | st.integers(FEWEST, 10_000),
    in_flight=st.integers(0, 10_000),
    overloaded=st.booleans(),
    roomy=st.booleans(),
)
def test_an_overload_never_raises_it_nor_room_lowers_it(
    limit: int | None, in_flight: int, overloaded: bool, roomy: bool
) -> None:
    after = bounded(limit, in_flight, overloaded=overloaded, roomy=roomy)
    if overloaded:
        assert after is not None
        assert FEWEST <= after <= max(FEWEST, in_flight if limit is None else limit)
    elif limit is None:
        assert after is None
    else:
        assert after is not None
        assert after >= limit


async def test_an_engine_with_room_for_a_hundred_is_kept_full_and_not_overfull() -> None:
    """Each episode needs 1 % of the KV cache, more or less; what is beyond it is put back."""
    generator, clock, load = random.Random(7), Clock(), {"preemptions_total": 0.0, "running": 0.0, "waiting": 0.0}
    concurrency, late, ends = Concurrency(lambda: load, clock=clock), list[float](), asyncio.Event()

    async def play() -> None:
        while True:
            async with concurrency.room():
                await ends.wait()

    async with asyncio.TaskGroup() as group:
        players = [group.create_task(play()) for _ in range(256)]
        for batch in range(150):
            await eventually(lambda: concurrency.in_flight == min(256, concurrency.limit or 256), "a batch is played")
            need = sum(generator.uniform(0.005, 0.015) for _ in range(concurrency.in_flight))
            load["kv_usage_max"], load["running"] = min(1.0, need), float(min(concurrency.in_flight, 100))
            load["preemptions_total"] += max(0.0, need - 1.0) * 100
            clock.now += 10.0
            if batch >= 50:
                late.append(need)
            ends.set()
            await eventually(lambda: concurrency.in_flight == 0, "all of them end at once")
            ends.clear()
        for player in players:
            player.cancel()
    assert sum(late) / len(late) > 0.75
    assert sum(need > 1.0 for need in late) / len(late) < 0.2
    assert max(late) < 1.4


async def test_requests_that_a_new_version_puts_back_are_no_overload() -> None:
    clock, load = Clock(), {"running": 20.0, "kv_usage_max": 0.3, "preemptions_total": 0.0}
    concurrency = Concurrency(lambda: load, clock=clock)
    async with AsyncExitStack() as held:
        for _ in range(20):
            await held.enter_async_context(concurrency.room())
        clock.now, load["preemptions_total"] = 10.0, 20.0
        concurrency.look()
        assert concurrency.limit is None
        clock.now, load["preemptions_total"], load["kv_usage_max"] = 20.0, 21.0, 0.97
        concurrency.look()
        assert concurrency.limit == FEWEST


async def test_what_evals_ask_for_is_not_made_up_for() -> None:
    clock, load = Clock(), {"waiting": 200.0, "running": 56.0}
    concurrency = Concurrency(lambda: load, clock=clock)
    async with AsyncExitStack() as held:
        for _ in range(20):
            await held.enter_async_context(concurrency.room())
        clock.now = 10.0
        concurrency.look()
        assert concurrency.limit is None
        load.update(waiting=12.0, running=8.0)
        clock.now = 20.0
        concurrency.look()
        assert concurrency.limit == FEWEST


async def test_nothing_is_looked_at_more_often_than_said() -> None:
    clock, load = Clock(), {"waiting": 99.0, "running": 1.0}
    concurrency = Concurrency(lambda: load, clock=clock, look_s=10.0)
    async with AsyncExitStack() as held:
        for _ in range(100):
            await held.enter_async_context(concurrency.room())
        clock.now = 9.9
        concurrency.look()
        assert concurrency.limit is None
        clock.now = 10.0
        concurrency.look()
        assert concurrency.limit == 80
    clock.now = 19.9
    concurrency.look()
    assert concurrency.limit == 80


async def test_who_asks_first_begins_first_and_who_ends_makes_room() -> None:
    clock, load, begun = Clock(), {"waiting": 1.0}, list[int]()
    concurrency = Concurrency(lambda: load, clock=clock)
    async with AsyncExitStack() as held:
        for _ in range(FEWEST):
            await held.enter_async_context(concurrency.room())
        clock.now = 10.0

        async def play(number: int) -> None:
            async with concurrency.room():
                begun.append(number)

        tasks = [asyncio.create_task(play(number)) for number in range(3)]
        await eventually(lambda: concurrency.limit == FEWEST, "the engines are looked at")
        tasks[0].cancel()  # it holds the others up no longer
        await asyncio.gather(tasks[0], return_exceptions=True)
        assert begun == []
    await asyncio.gather(*tasks[1:])
    assert begun == [1, 2]
    assert concurrency.in_flight == 0


async def test_no_more_are_played_than_engines_take() -> None:
    clock, load, player = Clock(), {"waiting": 0.0}, ScriptedPlayer()
    concurrency = Concurrency(lambda: load, clock=clock, look_s=0.01)
    rig = Rig(batch_config(batch_size=32, group_size=4), player, concurrency=concurrency)
    player.gate.clear()
    async with rig.running():
        await eventually(lambda: len(player.playing) == 32, "a batch's episodes are played")
        player.gate.set()
        await rig.buffer.batch()
        player.most.clear()
        player.gate.clear()
        load["waiting"], clock.now = 1.0, 1.0
        rig.update(1)
        await eventually(lambda: len(player.playing) == 25, "as many are played as may be")
        player.gate.set()
        await rig.buffer.batch()
    assert player.most.total() == 25
