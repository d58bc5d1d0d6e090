import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from echorl_core.config import EnvironmentConfig
from echorl_orchestrator.failures import BadInputError, EpisodeError, ErrorKind
from echorl_orchestrator.workers.background import Background
from echorl_orchestrator.workers.pool import WorkerPool
from echorl_orchestrator.workers.worker import WorkerSpec
from echorl_testing.waiting import until

SUPPORT = str(Path(__file__).parents[2] / "support")
ACTION = {"text": "x", "tool_calls": [], "truncated": False}


@asynccontextmanager
async def started(
    *does: str, factory: str = "odd", workers: int = 1, args: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[WorkerPool]:
    environment = EnvironmentConfig(
        name="odd",
        type=f"import:echorl_testing.orchestrator.odd_environments:{factory}",
        args={"does": list(does), **(args or {})} if factory.endswith("odd") else args or {},
        workers=workers,
    )
    background = Background()
    chosen = {"grace_s": 60.0, "drain_s": 0.5, "backoff_s": 0.05, **options}
    pool = WorkerPool(WorkerSpec(environment, [SUPPORT]), background, **chosen)
    try:
        await pool.start()
        yield pool
    finally:
        await background.close()
        await pool.close()


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def episode(pool: WorkerPool, name: str, index: int) -> Any:
    """reset and one step of task ``index``."""
    worker = await pool.lease()
    try:
        task = await worker.call("task", index=index)
        await worker.call("reset", episode=name, task=task, seed=1, episode_id=name)
        return await worker.call("step", episode=name, action=ACTION)
    finally:
        pool.end_episode(worker, name)


async def test_calls_reach_the_environment_and_close_is_called(tmp_path: Path) -> None:
    async with started("fine", args={"marks": str(tmp_path)}) as pool:
        assert pool.facts.num_tasks == 1
        step = await episode(pool, "e1", 0)
        assert step["reward"] == 0.25
        await until((tmp_path / "closed-e1").exists)


async def test_a_synchronous_endless_loop_stalls_nobody(tmp_path: Path) -> None:
    async with started("loop", "fine", args={"marks": str(tmp_path)}, grace_s=3.0, drain_s=10.0) as pool:
        (first,) = pool.pids
        hung = asyncio.create_task(episode(pool, "hung", 0))
        await until((tmp_path / "entered").exists)
        others = await asyncio.wait_for(asyncio.gather(*(episode(pool, f"e{n}", 1) for n in range(8))), 90)
        assert [step["reward"] for step in others] == [0.25] * 8
        hung.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hung
        await until(lambda: pool.retirements == 1)
        assert (await episode(pool, "later", 1))["reward"] == 0.25
        assert pool.pids != [first]
        await until(lambda: not alive(first))
        assert pool.deaths == 0


async def test_a_retired_worker_finishes_its_other_episodes_first(tmp_path: Path) -> None:
    async with started("sleep", "fine", args={"marks": str(tmp_path)}, grace_s=0.2, drain_s=120) as pool:
        worker = await pool.lease()
        await worker.call("reset", episode="slow", task={"does": "fine"}, seed=0, episode_id="slow")
        hung = asyncio.create_task(episode(pool, "hung", 0))
        await until((tmp_path / "entered").exists)
        hung.cancel()
        await until(lambda: pool.retirements == 1)
        assert (await worker.call("step", episode="slow", action=ACTION))["reward"] == 0.25
        pool.end_episode(worker, "slow")
        await until(lambda: worker.dead)


async def test_awaiting_code_is_cancelled_and_the_worker_stays(tmp_path: Path) -> None:
    async with started("sleep", "fine", factory="async_odd", args={"marks": str(tmp_path)}) as pool:
        (pid,) = pool.pids
        hung = asyncio.create_task(episode(pool, "hung", 0))
        await until((tmp_path / "entered").exists)
        hung.cancel()
        await until(lambda: pool._workers[0] is not None and pool._workers[0].leases == 0)
        assert (await episode(pool, "e", 1))["reward"] == 0.25
        assert (pool.pids, pool.retirements) == ([pid], 0)


def test_calls_to_a_worker_that_is_just_dying_fail_as_its_episodes_do() -> None:
    """On the event loop of the role, whose transports raise where asyncio's drop what is written."""

    async def scene() -> None:
        async with started("sleep", "fine") as pool:
            worker = await pool.lease()
            hung = asyncio.create_task(worker.call("task", index=0))
            background = asyncio.create_task(pool._background.watch())
            killing = asyncio.create_task(worker.kill())
            calls = []
            while not killing.done():
                calls.append(asyncio.create_task(worker.call("task", index=1)))
                cancelled = asyncio.create_task(worker.call("task", index=1))
                await asyncio.sleep(0)
                cancelled.cancel()
                calls.append(cancelled)
                pool.end_episode(worker, "e")
                worker.take()
            hung.cancel()
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert len(calls) > 4
            for error in ended:
                assert isinstance(error, asyncio.CancelledError) or error.kind is ErrorKind.SANDBOX, error
            await until(lambda: pool.deaths == 1 and len(pool.pids) == 1)
            assert (await episode(pool, "later", 1))["reward"] == 0.25
            assert not background.done()
            background.cancel()

    uvloop.run(scene())


async def test_a_dead_worker_fails_its_episodes_and_is_replaced() -> None:
    async with started("exit", "sleep", "fine", workers=2) as pool:
        other = asyncio.create_task(episode(pool, "other", 1))
        await until(lambda: sum(worker.leases for worker in pool._workers if worker) == 1)
        with pytest.raises(EpisodeError) as caught:
            await episode(pool, "dying", 0)
        assert caught.value.kind is ErrorKind.SANDBOX
        await until(lambda: pool.deaths == 1 and len(pool.pids) == 2)
        assert not other.done()
        assert (await episode(pool, "later", 2))["reward"] == 0.25
        other.cancel()


async def test_a_worker_whose_code_writes_to_our_socket_is_dead_to_us() -> None:
    async with started("garble", "fine") as pool:
        with pytest.raises(EpisodeError) as caught:
            await episode(pool, "garbling", 0)
        assert caught.value.kind is ErrorKind.SANDBOX
        await until(lambda: pool.deaths == 1 and len(pool.pids) == 1)
        assert (await episode(pool, "later", 1))["reward"] == 0.25


async def test_a_killed_worker_is_replaced() -> None:
    async with started("fine") as pool:
        os.kill(pool.pids[0], signal.SIGKILL)
        await until(lambda: pool.deaths == 1)
        assert (await asyncio.wait_for(episode(pool, "e", 0), 90))["reward"] == 0.25


async def test_a_stopped_worker_is_noticed() -> None:
    environment = EnvironmentConfig(name="digits", type="builtin:digits")
    background = Background()
    spec = WorkerSpec(environment, ping_interval_s=0.05, ping_deadline_s=3.0)
    pool = WorkerPool(spec, background, backoff_s=0.05)
    try:
        await pool.start()
        os.kill(pool.pids[0], signal.SIGSTOP)
        await until(lambda: pool.deaths == 1)
    finally:
        await background.close()
        await pool.close()


async def test_what_environment_code_raises_is_its_error() -> None:
    messages = {
        "step raises": "KeyError: 'inventory'",
        "system exit": "SystemExit: 3",
        "wrong type": "TypeError: step returned dict, accepted is Step",
        "unsendable": "FrameError: object cannot cross to the orchestrator",
    }
    async with started(*messages) as pool:
        for index, message in enumerate(messages.values()):
            with pytest.raises(EpisodeError, match=message) as caught:
                await episode(pool, f"e{index}", index)
            assert caught.value.kind is ErrorKind.ENV
        assert pool.deaths == 0


async def test_coroutines_share_a_loop_an_episode() -> None:
    async with started("fine", factory="async_odd") as pool:
        steps = await asyncio.gather(*(episode(pool, f"e{n}", 0) for n in range(20)))
        assert [step["reward"] for step in steps] == [0.25] * 20


async def test_a_factory_that_does_not_import_is_bad_input() -> None:
    with pytest.raises(BadInputError, match=r"module 'echorl_testing.orchestrator.odd_environments' has no 'absent'"):
        async with started(factory="absent", workers=2):
            pass


async def test_workers_die_with_their_parent() -> None:
    script = f"""
import asyncio, os, sys
from echorl_core.config import EnvironmentConfig
from echorl_orchestrator.workers.background import Background
from echorl_orchestrator.workers.pool import WorkerPool
from echorl_orchestrator.workers.worker import WorkerSpec
async def main():
    kind = "import:echorl_testing.orchestrator.odd_environments:odd"
    environment = EnvironmentConfig(name="odd", type=kind, args={{"does": ["loop"]}})
    pool = WorkerPool(WorkerSpec(environment, [{SUPPORT!r}]), Background())
    await pool.start()
    worker = await pool.lease()
    await worker.call("reset", episode="e", task={{"does": "loop"}}, seed=0, episode_id="e")
    loop = asyncio.create_task(worker.call("step", episode="e", action={ACTION!r}))
    await asyncio.sleep(0.1)
    print(worker.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    process = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        pid = int(await asyncio.to_thread(process.stdout.readline))
        assert alive(pid)
        process.kill()
    await until(lambda: not alive(pid))
