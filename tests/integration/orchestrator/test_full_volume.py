"""A volume without room: the orchestrator waits, says so, and goes on where it stood when there is room."""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from echorl_core.names import ExitCode
from echorl_orchestrator.attempt.trainer_desk import STOP_NAME
from echorl_testing.orchestrator.orchestrator_run import Run, check_batches
from echorl_testing.waiting import until

NO_CACHES = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Python keeps what it could write of a compiled module, and no process would import such a half any more."""


@contextmanager
def full(pid: int, largest: int) -> Iterator[None]:
    """No file of a process may become larger than ``largest`` bytes; what fits of a write is written."""
    unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest, unlimited[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)


async def told(run: Run, *words: str) -> None:
    """Wait until the state says what lacks room."""
    state = await run.state()
    while not all(word in str(state["volume_full"]) for word in words):
        state = await run.state(since=state["revision"], wait=10)
    assert state["phase"] != "Failed"
    assert state["waiting_for"] == f"room on the run's volume: {state['volume_full']}"


async def test_a_run_that_starts_without_room_trains_when_there_is_some(run: Run) -> None:
    run.configure()
    trainer = run.trainer()
    async with run.orchestrator(variables=NO_CACHES) as process:
        with full(process.pid, 40):
            training = asyncio.create_task(trainer.run())
            await told(run, "policy.json cannot be written: [Errno 27] File too large")
        await training
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    check_batches(run, trainer, 4)
    assert [row["step"] for row in run.rows("steps")] == [1, 2, 3, 4]


async def test_half_a_row_is_taken_back_and_a_stop_waits_for_no_room(run: Run) -> None:
    run.configure(max_steps=8)
    trainer = run.trainer()
    trainer.hold_after = 1
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator(variables=NO_CACHES) as process:
        state = await run.state()
        while "enough episodes are ready for batch 3" not in state["waiting_for"]:
            state = await run.state(since=state["revision"], wait=10)
        # Without their rows batch 2 would not be handed out, and no step be reported.
        await until(lambda: any(row["step"] == 2 for row in run.rows("episodes")))
        rows = run.directory.records(1) / "steps.jsonl"
        before = rows.read_bytes()
        with full(process.pid, len(before) + 20):
            trainer.go_on.set()
            # What is told is the first that waits, which may be the next batch.
            await told(run, "cannot be written")
            await until(lambda: f"waits={rows.name}" in run.log.read_text())
            assert rows.read_bytes() == before
        trainer.hold_after = None
        state = await run.state()
        while state["step"] < 3:
            state = await run.state(since=state["revision"], wait=10)
        assert state["volume_full"] is None
        with full(process.pid, 8):
            assert await run.stop() == 200
            assert not (run.directory.attempt(1) / STOP_NAME).exists()
        assert (await training).reason == "stopped"
        assert await process.wait() == ExitCode.STOPPED, run.log.read_text()
    steps = [row["step"] for row in run.rows("steps")]
    assert steps == list(range(1, len(steps) + 1))
