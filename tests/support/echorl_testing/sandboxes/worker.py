"""A process that makes sandboxes and says so, for tests that kill it: ``python -m ... FOLDER``."""

import asyncio
import sys
from pathlib import Path

from echorl_orchestrator.sandboxes.contract import Command, SandboxSpec
from echorl_orchestrator.sandboxes.process.provider import ProcessSandboxes


async def _main() -> None:
    sandboxes = ProcessSandboxes(Path(sys.argv[1]))
    for number in range(3):
        sandbox = await sandboxes.create(SandboxSpec("host", "/task"), str(number))
        await sandbox.start(Command(["sh", "-c", "setsid sleep 7654321 & sleep 7654321"]), "long")
    sys.stdout.write("made\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
