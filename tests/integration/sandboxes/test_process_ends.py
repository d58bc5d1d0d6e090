"""Sandboxes end with whoever made them, and nothing is left."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from echorl_orchestrator.sandboxes.contract import Command, SandboxError, SandboxLoss, SandboxSpec
from echorl_orchestrator.sandboxes.process.provider import ProcessSandboxes
from echorl_testing.sandboxes.running import ran
from echorl_testing.waiting import until

HOST = SandboxSpec("host", "/work")


def _descendants(parent: int) -> set[int]:
    """All processes below one, of this machine."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {parent}
    while more := {number for number, above in parents.items() if above in found} - found:
        found |= more
    return found - {parent}


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _alive(processes: set[int]) -> set[int]:
    def lives(number: int) -> bool:
        try:
            return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    return {number for number in processes if lives(number)}


async def test_nothing_outlives_a_worker_that_is_killed(sandboxes: ProcessSandboxes, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    line = [sys.executable, "-m", "echorl_testing.sandboxes.worker", str(folder)]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": paths}
    worker = await asyncio.create_subprocess_exec(*line, stdout=asyncio.subprocess.PIPE, env=environment)
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"made\n"
    below = _descendants(worker.pid)
    assert len(below) >= 3 * 5
    worker.kill()
    await worker.wait()

    await until(lambda: not _alive(below), 30)
    assert sorted(path.name for path in folder.rglob("*")) == ["images"]


async def test_a_sandbox_whose_process_is_killed_is_lost(sandboxes: ProcessSandboxes) -> None:
    before = _descendants(os.getpid())
    sandbox = await sandboxes.create(HOST, "one")
    await sandbox.start(Command(["sleep", "1000"]), "long")
    made = _descendants(os.getpid()) - before
    guard = min(made)
    os.kill(guard, signal.SIGKILL)

    with pytest.raises(SandboxError) as lost:
        await sandbox.wait("long", 30)
    assert lost.value.loss is SandboxLoss.LOST
    await until(lambda: not _alive(made), 30)
    assert await sandboxes.list() == []
    await sandboxes.destroy("one")
    assert (await ran(await sandboxes.create(HOST, "one"), "echo again"))[1] == "again\n"


async def test_destroying_returns_when_all_is_gone(sandboxes: ProcessSandboxes) -> None:
    before = _descendants(os.getpid())
    descriptors = _descriptors()
    for number in range(20):
        sandbox = await sandboxes.create(HOST, str(number))
        await sandbox.start(Command(["sh", "-c", "setsid sleep 1000 & sleep 1000"]), "long")
        made = _descendants(os.getpid()) - before
        await sandboxes.destroy(str(number))
        assert not _alive(made)
    assert _descriptors() == descriptors


async def test_a_creation_that_is_cancelled_leaves_nothing(sandboxes: ProcessSandboxes) -> None:
    before = _descendants(os.getpid())
    creating = asyncio.create_task(sandboxes.create(HOST, "one"))
    await until(lambda: bool(_descendants(os.getpid()) - before), 30)
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)
    await sandboxes.close()
    assert not _alive(_descendants(os.getpid()) - before)
    assert await sandboxes.list() == []
