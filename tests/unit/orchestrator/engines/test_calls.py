"""Calls that are given up all at once."""

import asyncio
import contextlib

import pytest

from echorl_orchestrator.engines.calls import Calls, CallsGivenUpError


async def waits(calls: Calls, ends: asyncio.Event, started: asyncio.Event | None = None) -> str:
    with calls.running():
        if started is not None:
            started.set()
        await ends.wait()
    return "answered"


async def running(calls: Calls, ends: asyncio.Event) -> "asyncio.Task[str]":
    started = asyncio.Event()
    task = asyncio.create_task(waits(calls, ends, started))
    await started.wait()
    return task


async def test_every_call_that_runs_is_given_up_and_later_ones_are_refused() -> None:
    calls, never = Calls(), asyncio.Event()
    tasks = [await running(calls, never) for _ in range(3)]
    calls.give_up("the engine is lost")
    for task in tasks:
        with pytest.raises(CallsGivenUpError, match="the engine is lost"):
            await task
        assert task.cancelling() == 0
    with pytest.raises(CallsGivenUpError, match="the engine is lost"):
        await waits(calls, never)


async def test_a_call_that_has_ended_is_not_concerned() -> None:
    calls, ends = Calls(), asyncio.Event()

    async def two() -> str:
        answer = await waits(calls, ends)
        calls.give_up("later")
        await asyncio.sleep(0)
        return answer

    task = asyncio.create_task(two())
    ends.set()
    assert await task == "answered"


async def test_who_cancels_the_caller_is_obeyed() -> None:
    calls, never = Calls(), asyncio.Event()
    task = await running(calls, never)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    both = await running(calls, never)
    both.cancel()
    calls.give_up("lost")
    with pytest.raises(asyncio.CancelledError):
        await both


async def test_an_answer_and_the_end_at_the_same_moment() -> None:
    calls, ends = Calls(), asyncio.Event()
    task = await running(calls, ends)
    ends.set()
    calls.give_up("lost")
    with pytest.raises(CallsGivenUpError):
        await task


async def test_a_block_that_ends_well_all_the_same_leaves_no_cancellation_behind() -> None:
    calls, started = Calls(), asyncio.Event()

    async def ends_well() -> str:
        with calls.running():
            started.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return "answered"

    task = asyncio.create_task(ends_well())
    await started.wait()
    calls.give_up("lost")
    assert await task == "answered"
    assert task.cancelling() == 0


async def test_a_timeout_of_its_own_stays_one() -> None:
    calls, never = Calls(), asyncio.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await waits(calls, never)
