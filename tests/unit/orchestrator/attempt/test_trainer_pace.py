"""When a batch is due, worked out by hand in virtual time."""

import asyncio
import math
from pathlib import Path

import pytest

from echorl_core.rundir import RunDirectory
from echorl_core.wire.batch import StopNotice
from echorl_core.wire.reports import NoticeReport
from echorl_orchestrator.attempt.trainer_desk import TrainerDesk
from echorl_orchestrator.attempt.trainer_pace import WINDOW, TrainerPace
from echorl_testing.engines.fake_engine import policy
from echorl_testing.orchestrator.sealed import prepared, seal_step, store_of
from echorl_testing.virtual_time import run_in_virtual_time


async def steps(pace: TrainerPace, *seconds: float) -> int:
    """The trainer has each of these steps behind it and the next batch in its hands; the step after that."""
    pace.asked(1)
    pace.given(1)
    for step, length in enumerate(seconds, start=2):
        await asyncio.sleep(length)
        pace.asked(step)
        await asyncio.sleep(3.0)
        pace.given(step)
    return len(seconds) + 2


def test_a_batch_is_due_before_the_shortest_step_has_passed() -> None:
    async def life() -> list[float]:
        pace = TrainerPace()
        upcoming = await steps(pace, 20.0, 10.0, 30.0)
        found = [pace.due_in_s(upcoming)]
        pace.sealed(1.5)
        pace.sealed(0.5)
        found.append(pace.due_in_s(upcoming))
        await asyncio.sleep(4.0)
        found.append(pace.due_in_s(upcoming))
        await asyncio.sleep(4.0)
        return [*found, pace.due_in_s(upcoming)]

    # 9/10 of 10 s; less twice 1.5 s; 4 s and 8 s later. What the trainer waited (3 s) is no part of a step.
    assert run_in_virtual_time(life()) == pytest.approx([9.0, 6.0, 2.0, 0.0])


def test_a_batch_that_is_asked_for_is_due() -> None:
    async def life() -> float:
        pace = TrainerPace()
        upcoming = await steps(pace, 10.0)
        pace.asked(upcoming)
        return pace.due_in_s(upcoming)

    assert run_in_virtual_time(life()) == 0.0


def test_nothing_is_held_back_before_a_step_was_measured() -> None:
    async def life() -> list[float]:
        pace = TrainerPace()
        found = [pace.due_in_s(1)]
        pace.given(1)
        return [*found, pace.due_in_s(2)]

    assert run_in_virtual_time(life()) == [0.0, 0.0]


def test_a_short_step_of_long_ago_counts_no_more() -> None:
    async def life() -> float:
        pace = TrainerPace()
        return pace.due_in_s(await steps(pace, 1.0, *[10.0] * WINDOW))

    assert run_in_virtual_time(life()) == pytest.approx(9.0)


def test_no_batch_is_due_while_the_one_before_it_is_in_no_hands(tmp_path: Path) -> None:
    prepared(RunDirectory(tmp_path))
    store, moved = store_of(tmp_path), []

    async def life() -> list[float]:
        desk = TrainerDesk(store, num_ranks=2, start_step=0, attempt_folder=tmp_path / "attempts" / "1")
        desk.on_moved = lambda: moved.append(desk.given)
        found = [desk.due_in_s(1), desk.due_in_s(2)]
        waiting = asyncio.create_task(desk.pull(1, 0, 100.0))
        await asyncio.sleep(5.0)
        seal_step(store, 1, ranks=2)
        await desk.sealed()
        await waiting
        found += [desk.due_in_s(2), desk.due_in_s(3)]
        await asyncio.sleep(10.0)
        await desk.pull(1, 1, 0.0)
        await desk.pull(2, 0, 0.0)
        seal_step(store, 2, ranks=2)
        await desk.pull(2, 1, 0.0)
        return [*found, desk.due_in_s(3)]

    assert run_in_virtual_time(life()) == pytest.approx([0.0, math.inf, 0.0, math.inf, 9.0])
    assert moved == [0, 1, 1, 1, 2]


def test_what_is_left_of_a_step_is_told_by_the_middle_one_of_the_last() -> None:
    async def life() -> list[float]:
        pace = TrainerPace()
        found = [pace.left_s()]
        upcoming = await steps(pace, 20.0, 10.0, 60.0)
        found.append(pace.left_s())
        await asyncio.sleep(15.0)
        found.append(pace.left_s())
        await asyncio.sleep(15.0)
        found.append(pace.left_s())
        pace.asked(upcoming)
        return [*found, pace.left_s()]

    assert run_in_virtual_time(life()) == [0.0, 20.0, 5.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("within_s", "reply", "stop"),
    [
        (24.0, 3, StopNotice(reason="notice", step=3, checkpoint=True)),
        (23.0, None, StopNotice(reason="notice", step=2, checkpoint=False)),
    ],
)
def test_a_gang_that_is_given_notice_saves_if_step_and_save_fit(
    tmp_path: Path, within_s: float, reply: int | None, stop: StopNotice
) -> None:
    async def life() -> None:
        prepared(RunDirectory(tmp_path))
        store = store_of(tmp_path)
        desk = TrainerDesk(store, num_ranks=2, start_step=0, attempt_folder=tmp_path / "attempts" / "1")
        for step in (1, 2, 3):
            seal_step(store, step, ranks=2)
            await desk.pull(step, 0, 0.0)
            if step < 3:
                await desk.pull(step, 1, 0.0)
                await asyncio.sleep(20.0)
                await desk.announced(policy(step))
        # Rank 0 has step 3 under way for 4 s: 16 s are left of it, and a save takes 8.
        await asyncio.sleep(4.0)
        first = NoticeReport(attempt=1, rank=0, within_s=within_s, save_s=8.0)
        assert (await desk.noticed(first, committed=1)).step == reply
        # What is decided holds for every rank, whatever it says.
        second = NoticeReport(attempt=1, rank=1, within_s=1000.0 - within_s, save_s=0.0)
        assert (await desk.noticed(second, committed=1)).step == reply
        assert await desk.pull(4, 0, 0.0) == desk.notice == stop
        late = await desk.pull(3, 1, 0.0)
        assert late == (store.rank_file(3, 1) if reply == 3 else stop)

    run_in_virtual_time(life())
