"""Work of several threads on one loop that outlives theirs."""

import asyncio
import threading

import pytest

from echorl_orchestrator.environments.verifiers.loop import SharedLoop


async def where() -> tuple[int, int]:
    return threading.get_ident(), id(asyncio.get_running_loop())


async def failing() -> None:
    raise ValueError("the board fell down")


def test_work_of_all_who_come_runs_on_one_loop() -> None:
    shared = SharedLoop("shared")
    first, second = (asyncio.run(shared.run(where())) for _ in range(2))
    assert first == second
    assert first[0] != threading.get_ident()


def test_what_work_raises_is_raised_to_who_waits() -> None:
    with pytest.raises(ValueError, match="the board fell down"):
        asyncio.run(SharedLoop("shared").run(failing()))


async def test_who_cancels_waits_until_the_work_has_cleaned_up() -> None:
    begun, done = threading.Event(), []

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            done.append("cleaned up")

    waiting = asyncio.create_task(SharedLoop("shared").run(work()))
    assert await asyncio.to_thread(begun.wait, 10)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert done == ["cleaned up"]
