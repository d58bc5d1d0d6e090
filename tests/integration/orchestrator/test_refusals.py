"""The orchestrator as a process that cannot work: what it says and how it ends."""

import asyncio
import re
import socket
from pathlib import Path
from typing import Any

from echorl_core.config import FilterConfig
from echorl_core.names import ExitCode
from echorl_testing.orchestrator.orchestrator_run import Run, environment
from echorl_testing.waiting import until


async def test_a_taken_port_is_bad_input(run: Run) -> None:
    run.configure()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", run.port))
        holder.listen()
        async with run.orchestrator() as process:
            assert await process.wait() == ExitCode.BAD_INPUT
    assert f"port {run.port} on 127.0.0.1 is taken by another process" in run.log.read_text()


async def test_a_port_that_is_taken_after_a_restart_is_waited_for(run: Run) -> None:
    run.configure()
    trainer = run.trainer()
    trainer.hold_after = 1
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator() as process:
        await trainer.held.wait()
        process.kill()
        await process.wait()
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", run.port))
        holder.listen()
        async with run.orchestrator() as process:
            await until(lambda: "the port is not free yet" in run.log.read_text())
            holder.close()
            trainer.go_on.set()
            assert (await training).reason == "finished"
            assert await process.wait() == ExitCode.OK, run.log.read_text()


async def test_a_run_directory_that_is_deleted_is_named_and_does_not_come_back(run: Run) -> None:
    run.configure(max_steps=50)
    trainer = run.trainer()
    trainer.hold_after = 1
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator() as process:
        await trainer.held.wait()
        # At once, as it would not be while the orchestrator writes into folders that are being removed.
        run.directory.root.rename(run.directory.root.with_name("deleted"))
        trainer.go_on.set()
        assert await process.wait() == ExitCode.CRASH
    training.cancel()
    await asyncio.gather(training, return_exceptions=True)
    assert f"the run directory is gone: {run.directory.identity_file} is missing" in run.log.read_text()
    assert not run.directory.identity_file.exists()
    left = [path for path in run.directory.root.rglob("*") if "checkpoints" not in path.parts]
    assert left == []
    async with run.orchestrator() as process:
        assert await process.wait() == ExitCode.CRASH
    assert not run.directory.records(1).exists()


async def followed_failure(run: Run) -> dict[str, Any]:
    """The state's failure, as a supervisor that long-polls sees it; the ranks hear of the end only afterwards.

    Once they have, the orchestrator is gone, and a supervisor that asks again just then finds nobody.
    """
    trainer = run.trainer()
    trainer.hold_after = 0
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator() as process:
        state = await run.state()
        while state["failure"] is None:
            state = await run.state(since=state["revision"], wait=10)
        trainer.go_on.set()
        assert (await training).reason == "failed"
        assert state["phase"] == "Failed"
        assert await process.wait() == state["failure"]["exit_code"], run.log.read_text()
    return dict(state["failure"])


async def test_nothing_to_train_ends_the_run_with_the_reason(run: Run) -> None:
    # The engine always says the same, so every group has one reward and no advantage.
    run.configure(batch={"filters": [FilterConfig(type="zeroAdvantage")], "max_staleness": 3})
    failure = await followed_failure(run)
    assert failure["exit_code"] == ExitCode.NOTHING_TO_TRAIN
    assert "step 1: 3 batches in a row had no trainable token" in failure["message"]


async def test_an_environment_that_always_fails_ends_the_run_with_the_reason(run: Run, tmp_path: Path) -> None:
    (tmp_path / "broken_env.py").write_text(
        "from echorl_orchestrator.types import Environment\n"
        "class Broken:\n"
        "    def reset(self, task, *, seed, episode_id):\n"
        "        raise RuntimeError('no tree')\n"
        "    def step(self, action): ...\n"
        "    def close(self): ...\n"
        "def make():\n"
        "    return Environment(tasks=[{'key': n} for n in range(4)], text_env=Broken)\n"
    )
    broken = environment("broken", type="import:broken_env:make")
    run.configure(train=[broken], evals=[], python_path=[str(tmp_path)], max_consecutive_failures=6)
    failure = await followed_failure(run)
    assert failure["exit_code"] == ExitCode.ENVIRONMENT
    failed = re.match(r"(\d+) episodes failed one after the other", failure["message"])
    # Episodes that are in flight may fail before the limit has ended the run.
    assert failed is not None
    assert int(failed[1]) >= 6
    assert "no tree" in failure["message"]


async def test_an_import_that_does_not_resolve_is_bad_input(run: Run) -> None:
    run.configure(train=[environment("lost", type="import:no_such_module:make")])
    async with run.orchestrator() as process:
        assert await process.wait() == ExitCode.BAD_INPUT, run.log.read_text()
    assert "no_such_module" in run.log.read_text()
