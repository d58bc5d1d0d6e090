"""A sandbox as the pipeline uses it: no call without a deadline, which infrastructure has to keep."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import NoReturn

from echorl_orchestrator.failures import ClassedError, HarnessError, InfrastructureError
from echorl_orchestrator.sandboxes.contract import (
    Command,
    Ended,
    Sandbox,
    SandboxError,
    Sandboxes,
    SandboxLoss,
    SandboxSpec,
)

HARNESS = "/tmp/echorl"  # noqa: S108 - within a sandbox, which nobody shares
"""Our own files inside; no workdir may hold it."""
CALL_S = 60.0
_POLL_S = 30.0
_TAIL_BYTES = 64 << 10
_KILLED = 137
"""Exit code of a command that SIGKILL ended."""


@dataclass(frozen=True)
class Ran:
    """How a command went."""

    code: int
    output: str
    """Of what it printed, the end."""
    late: bool = False
    """It was killed at its deadline."""
    out_of_memory: bool = False
    out_of_processes: bool = False

    @property
    def well(self) -> bool:
        """Whether it came to its end with 0."""
        return self.code == 0 and not self.late

    @property
    def killed(self) -> bool:
        """Whether somebody killed it who neither waited for it nor counts what it uses: what it did says nothing."""
        return self.code == _KILLED and not (self.late or self.used_up)

    @property
    def used_up(self) -> str:
        """What of its sandbox it used up; empty: nothing."""
        return "memory" if self.out_of_memory else "processes" if self.out_of_processes else ""

    def told(self) -> str:
        """What became of it, and the last line that it printed."""
        lines = self.output.strip().splitlines()
        short = "time" if self.late else self.used_up
        how = f"ran out of {short}" if short else f"ended with {self.code}"
        return f"{how}: {lines[-1][:300]}" if lines else how


@asynccontextmanager
async def within(seconds: float, what: str, late: type[ClassedError] = InfrastructureError) -> AsyncIterator[None]:
    """A deadline; ``late`` is raised when it is not kept."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise late(f"{what}: not done after {seconds:g} s") from None


@contextmanager
def harness_of(row: str, what: str) -> Iterator[None]:
    """Of what uses a sandbox up in here no agent is to blame.

    Raises:
        HarnessError: it was used up.
    """
    try:
        yield
    except SandboxError as error:
        if error.loss is not SandboxLoss.OVERUSED:
            raise
        raise HarnessError(f"{row}: {what}: used its sandbox up: {error.message}") from error


class Box:
    """A sandbox and the row that it is for, whose key stands in every message."""

    def __init__(self, sandbox: Sandbox, row: str) -> None:
        self.sandbox, self.row = sandbox, row
        self._commands = 0

    @classmethod
    async def make(cls, sandboxes: Sandboxes, spec: SandboxSpec, key: str, row: str, seconds: float) -> "Box":
        """A clean one.

        Raises:
            InfrastructureError: it was not there in time.
            SandboxError: there is none.
        """
        async with within(seconds, f"{row}: create the sandbox"):
            return cls(await sandboxes.create(spec, key), row)

    def failed(self, stage: str, why: str) -> NoReturn:
        """The row cannot be prepared or graded.

        Raises:
            HarnessError: always.
        """
        raise HarnessError(f"{self.row}: {stage}: {why}")

    async def put(self, path: str, data: bytes, *, mode: int = 0o644, root: bool = True) -> None:
        """Write a file.

        Raises:
            HarnessError: the sandbox has no place for it.
        """
        try:
            async with within(CALL_S, f"{self.row}: write {path}"):
                await self.sandbox.write(path, data, mode=mode, root=root)
        except OSError as error:
            self.failed("write", f"{path}: {error}")

    async def get(self, path: str, limit: int) -> bytes | None:
        """A file's bytes; None where there is no plain file, or a longer one."""
        try:
            async with within(CALL_S, f"{self.row}: read {path}"):
                return await self.sandbox.read(path, limit)
        except OSError:
            return None

    async def shell(
        self, script: str, *arguments: str, seconds: float, environment: Mapping[str, str] | None = None
    ) -> Ran:
        """Run a script of ours by ``sh`` as root, with ``arguments``.

        Raises:
            SandboxError: the sandbox is not there any more.
            InfrastructureError: it does not answer, or somebody killed the script.
        """
        argv = ["/bin/sh", "-c", script, "echorl", *arguments]
        ran = await self.run(Command(argv, environment or {}, root=True), seconds)
        if ran.killed:
            raise InfrastructureError(f"{self.row}: a script of ours was killed from outside: {ran.told()}")
        return ran

    async def run(self, command: Command, seconds: float) -> Ran:
        """Run a command to its end, or for ``seconds``; then nothing of what it started is left.

        Raises:
            SandboxError: the sandbox is not there any more.
            InfrastructureError: it does not answer.
        """
        self._commands += 1
        key = f"c{self._commands}"
        async with within(CALL_S, f"{self.row}: start a command"):
            await self.sandbox.start(command, key)
        ended = await self._ended(key, seconds)
        async with within(CALL_S, f"{self.row}: end a command"):
            await self.sandbox.kill(key)
        late = ended is None
        ended = ended or await self._ended(key, CALL_S) or Ended(_KILLED, killed=True)
        output = await self._tail(key)
        return Ran(
            ended.code,
            output,
            late=late,
            out_of_memory=ended.out_of_memory,
            out_of_processes=ended.out_of_processes,
        )

    async def _ended(self, key: str, seconds: float) -> Ended | None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            waits = min(left, _POLL_S)
            async with within(waits + CALL_S, f"{self.row}: wait for a command"):
                ended = await self.sandbox.wait(key, waits)
            if ended is not None:
                return ended
        return None

    async def _tail(self, key: str) -> str:
        tail, offset = b"", 0
        async with within(CALL_S, f"{self.row}: read what a command printed"):
            while part := await self.sandbox.output(key, offset):
                offset += len(part)
                tail = (tail + part)[-_TAIL_BYTES:]
        return tail.decode(errors="replace")


def joined(arguments: Sequence[str]) -> bytes:
    """Arguments as ``xargs -0`` reads them."""
    return b"".join(one.encode("utf-8", "surrogateescape") + b"\0" for one in arguments)
