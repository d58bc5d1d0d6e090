"""Commands in sandboxes."""

import itertools

from echorl_orchestrator.sandboxes.contract import Command, Ended, Sandbox

_numbers = itertools.count()
WITHIN_S = 60.0


async def ran(sandbox: Sandbox, script: str, *, root: bool = False, within_s: float = WITHIN_S) -> tuple[Ended, str]:
    """How a shell script ended, and what it wrote."""
    key = f"script {next(_numbers)}"
    await sandbox.start(Command(["sh", "-c", script], root=root), key)
    ended = await sandbox.wait(key, within_s)
    assert ended is not None, f"runs after {within_s:.0f} s: {script}"
    return ended, (await sandbox.output(key)).decode()


async def started(sandbox: Sandbox, script: str, key: str, until: str) -> None:
    """A script that runs and has written ``until``."""
    await sandbox.start(Command(["sh", "-c", script]), key)
    while until not in (await sandbox.output(key)).decode():
        assert await sandbox.wait(key, 0.02) is None, (await sandbox.output(key)).decode()
