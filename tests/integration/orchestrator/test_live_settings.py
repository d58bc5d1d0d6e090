"""Settings that the orchestrator, a process, takes in while it works."""

import asyncio

import pytest

from echorl_core.config import (
    CheckpointConfig,
)
from echorl_core.names import ExitCode
from echorl_core.prepare import prepare
from echorl_core.wire.batch import StopNotice, TokenRole
from echorl_testing.orchestrator.orchestrator_run import SECOND, Run, check_batches


async def test_a_raised_last_step_takes_effect_after_the_last_batch_was_sealed(run: Run) -> None:
    run.configure(max_steps=2)
    trainer = run.trainer()
    trainer.hold_after = 1
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator() as process:
        state = await run.state()
        while "every batch is sealed" not in state["waiting_for"]:
            state = await run.state(since=state["revision"], wait=10)
        assert (await run.live(5, max_steps=4))[0] == 200
        assert (await run.until_live(5))["max_steps"] == 4
        trainer.go_on.set()
        assert await training == StopNotice(reason="finished", step=4, checkpoint=False)
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    check_batches(run, trainer, 4)
    assert [seal.last for seal in run.seals()] == [False, True, False, True]
    assert [row["step"] for row in run.rows("evals")] == [0, 2, 4]


async def test_a_lowered_last_step_ends_the_run_where_it_is_with_a_checkpoint(run: Run) -> None:
    run.configure(max_steps=50, checkpoint=CheckpointConfig(interval=20, keep_last=2))
    trainer = run.trainer()
    trainer.hold_after = 3
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator() as process:
        await trainer.held.wait()
        assert (await run.live(1, max_steps=1))[0] == 200
        last = (await run.until_live(1))["max_steps"]
        assert last >= 3, "what is sealed is trained"
        trainer.go_on.set()
        assert await training == StopNotice(reason="finished", step=last, checkpoint=True)
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    assert trainer.saved == {last: "committed"}
    assert not any(seal.checkpoint or seal.last for seal in run.seals())
    check_batches(run, trainer, last)
    assert run.rows("evals")[-1]["step"] == last
    assert prepare(run.directory, SECOND).resume_step == last


@pytest.mark.faults
async def test_live_settings_outlive_the_orchestrator(run: Run) -> None:
    run.configure(max_steps=50, checkpoint=CheckpointConfig(interval=20, keep_last=9))
    trainer = run.trainer()
    trainer.hold_after = 2
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator() as process:
        await trainer.held.wait()
        sampling = {"digits": {"temperature": 0.5, "max_completion_tokens": 3}}
        checkpoint = {"interval": 3, "keep_last": 9}
        settings = {"max_steps": 7, "checkpoint": checkpoint, "sampling": sampling, "eval_intervals": {"held-out": 5}}
        assert (await run.live(4, **settings))[0] == 200
        process.kill()
        await process.wait()
    async with run.orchestrator() as process:
        assert (await run.state())["live_generation"] == 4
        assert await run.live(4, **settings) == (200, {"generation": 4, "in_effect": True})
        assert (await run.live(3))[0] == 409
        trainer.go_on.set()
        assert await training == StopNotice(reason="finished", step=7, checkpoint=False)
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    # Batch 3 may have been sealed before the settings came.
    assert set(trainer.saved) - {3} == {6, 7}
    assert [row["step"] for row in run.rows("evals")][-2:] == [5, 7]
    last = trainer.batches[7, 0].micro_batches[0]
    assert set(last.temperature[last.role == TokenRole.ACTION].tolist()) == {0.5}


async def test_settings_that_come_after_the_end_are_refused(run: Run) -> None:
    run.configure(max_steps=50)
    trainer = run.trainer()
    trainer.hold_after = 0  # the orchestrator stays until its ranks know of the end
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator() as process:
        await trainer.held.wait()
        assert (await run.state())["live_generation"] == 0
        assert await run.stop() == 200
        status, answer = await run.live(2, max_steps=60)
        assert (status, answer) == (409, {"error": "the run is stopping"})
        trainer.go_on.set()
        assert await training == StopNotice(reason="stopped", step=0, checkpoint=False)
        assert await process.wait() == ExitCode.STOPPED, run.log.read_text()
