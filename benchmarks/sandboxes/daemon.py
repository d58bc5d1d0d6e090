"""The measurement of a pod sandbox's daemon, without the pod: in namespaces of this machine, over loopback."""

import os

from benchmarks.sandboxes.measuring import Figures
from echorl_orchestrator.sandboxes.contract import Command, Sandbox
from echorl_testing.cluster.binaries import Binaries
from echorl_testing.sandboxes.daemons import Daemons, client

_WITHIN_S = 120.0
_MIB = 1 << 20


async def daemon_measured(count: int) -> Figures:
    """Measure each call ``count`` times, one after the other, of one sandbox; raises Unavailable without Go."""
    figures = Figures()
    daemons = Daemons(Binaries().path("sandbox-daemon"))
    try:
        sandbox = client(await figures.timed("daemon: start", daemons.start()))
        for number in range(count):
            await figures.timed("daemon: a command that does nothing", _run(sandbox, f"nothing {number}"))
            key = f"long {number}"
            spread = Command(["sh", "-c", "setsid sleep 1000 & sleep 1000"])
            await figures.timed("daemon: start of a command", sandbox.start(spread, key))
            await figures.timed("daemon: kill of a command", sandbox.kill(key))
            data = os.urandom(_MIB)
            await figures.timed("daemon: write of 1 MiB", sandbox.write("/task/file", data))
            if await figures.timed("daemon: read of 1 MiB", sandbox.read("/task/file")) != data:
                raise RuntimeError("what was read is not what was written")
        await sandbox.close()
    finally:
        await daemons.close()
    return figures


async def _run(sandbox: Sandbox, key: str) -> None:
    await sandbox.start(Command(["true"]), key)
    ended = await sandbox.wait(key, _WITHIN_S)
    if ended is None or ended.code != 0:
        raise RuntimeError(f"a command that does nothing ended with {ended}")
