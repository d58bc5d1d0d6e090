"""Sandboxes end with whoever made them, and nothing is left."""

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path

import pytest

from echorl_orchestrator.sandboxes.contract import Command, SandboxError, SandboxLoss, SandboxSpec
from echorl_orchestrator.sandboxes.process.provider import ProcessSandboxes
from echorl_testing.sandboxes.processes import alive, children, descendants
from echorl_testing.sandboxes.running import ran
from echorl_testing.waiting import until

HOST = SandboxSpec("host", "/task")


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_nothing_outlives_a_worker_that_is_killed(sandboxes: ProcessSandboxes, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    line = [sys.executable, "-m", "echorl_testing.sandboxes.worker", str(folder)]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": paths}
    worker = await asyncio.create_subprocess_exec(*line, stdout=asyncio.subprocess.PIPE, env=environment)
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"made\n"
    # A shell's command is started, and its children come in their time.
    await until(lambda: len(descendants(worker.pid)) >= 3 * 5, 30)
    below = descendants(worker.pid)
    worker.kill()
    await worker.wait()

    await until(lambda: not alive(below), 30)
    assert sorted(path.name for path in folder.rglob("*")) == ["images"]


async def test_a_sandbox_whose_process_is_killed_is_lost(sandboxes: ProcessSandboxes) -> None:
    before = descendants(os.getpid())
    sandbox = await sandboxes.create(HOST, "one")
    await sandbox.start(Command(["sleep", "1000"]), "long")
    made = descendants(os.getpid()) - before
    [guard] = made & children(os.getpid())
    os.kill(guard, signal.SIGKILL)

    with pytest.raises(SandboxError) as lost:
        await sandbox.wait("long", 30)
    assert lost.value.loss is SandboxLoss.LOST
    await until(lambda: not alive(made), 30)
    assert await sandboxes.list() == []
    await sandboxes.destroy("one")
    assert (await ran(await sandboxes.create(HOST, "one"), "echo again"))[1] == "again\n"


async def test_destroying_returns_when_all_is_gone(sandboxes: ProcessSandboxes) -> None:
    before = descendants(os.getpid())
    descriptors = _descriptors()
    for number in range(20):
        sandbox = await sandboxes.create(HOST, str(number))
        await sandbox.start(Command(["sh", "-c", "setsid sleep 1000 & sleep 1000"]), "long")
        made = descendants(os.getpid()) - before
        await sandboxes.destroy(str(number))
        assert not alive(made)
    assert _descriptors() == descriptors


async def test_a_creation_that_is_destroyed_is_lost_to_who_waits_for_it(sandboxes: ProcessSandboxes) -> None:
    before = descendants(os.getpid())
    creating = asyncio.create_task(sandboxes.create(HOST, "one"))
    await until(lambda: bool(descendants(os.getpid()) - before), 30)
    await sandboxes.destroy("one")
    with pytest.raises(SandboxError, match="destroyed while it was made"):
        await creating
    assert not alive(descendants(os.getpid()) - before)
    assert (await ran(await sandboxes.create(HOST, "one"), "echo again"))[1] == "again\n"


async def test_a_machine_without_room_for_another_process_refuses(sandboxes: ProcessSandboxes) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    await sandboxes.create(HOST, "one")
    descriptors = _descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(SandboxError) as refused:
            await sandboxes.create(HOST, "two")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert refused.value.loss is SandboxLoss.REFUSED
    assert _descriptors() == descriptors
    await sandboxes.create(HOST, "two")


async def test_a_creation_that_is_cancelled_leaves_nothing(sandboxes: ProcessSandboxes) -> None:
    before = descendants(os.getpid())
    creating = asyncio.create_task(sandboxes.create(HOST, "one"))
    await until(lambda: bool(descendants(os.getpid()) - before), 30)
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)
    await sandboxes.close()
    assert not alive(descendants(os.getpid()) - before)
    assert await sandboxes.list() == []
