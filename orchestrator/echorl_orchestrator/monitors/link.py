"""One life of a monitor's process: started, asked line by line, ended."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from echorl_core.names import ENV_ADMIN_TOKEN
from echorl_orchestrator.workers.rpc import write

HIDDEN = "(hidden)"
_TAIL_CHARACTERS = 2000


class MonitorError(Exception):
    """A monitor's process failed, hung or died; the message says how, without secrets."""


@dataclass(frozen=True)
class Launch:
    """How a monitor is started."""

    name: str
    """``wandb`` or ``tensorboard``."""
    opening: Mapping[str, Any]
    """What it is told first."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that nobody else gets; their values are kept out of messages."""
    command: Sequence[str] = (sys.executable, "-P", "-m", "echorl_orchestrator.monitors.process")


def _environment() -> dict[str, str]:
    """Ours, without the token of the run's own routes: a client of others has no business there."""
    return {name: value for name, value in os.environ.items() if name != ENV_ADMIN_TOKEN}


class Link:
    """Messages are lines of JSON, in both directions; every message has one answer."""

    def __init__(self, process: asyncio.subprocess.Process, launch: Launch) -> None:
        self._process, self._launch = process, launch
        self._tail = ""
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, launch: Launch) -> "Link":
        """Start the process, in a session of its own so that its helpers end with it.

        Raises:
            OSError: it cannot be started.
        """
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(*launch.command, "--kind", launch.name, "--parent", str(os.getpid())),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env={**_environment(), **launch.secrets},
            start_new_session=True,
        )
        return cls(process, launch)

    async def ask(self, message: object, deadline_s: float) -> None:
        """Send a message and wait for its answer.

        Raises:
            MonitorError: the answer is a failure, or does not come within the deadline.
        """
        try:
            async with asyncio.timeout(deadline_s):
                self.send(message)
                await self._stdin.drain()
                line = await self._answer()
        except TimeoutError:
            raise MonitorError(f"no answer within {deadline_s:g} s{self._said()}") from None
        except OSError:
            line = b""
        self._understood(line)

    def send(self, message: object) -> None:
        """Send a message without waiting for anything.

        Raises:
            ConnectionError: the process is gone.
        """
        write(self._stdin, msgspec.json.encode(message) + b"\n")

    async def finish(self) -> int:
        """End the messages and wait until the process has ended; how many answers came meanwhile.

        Raises:
            MonitorError: it ended with a failure.
        """
        self._stdin.close()
        answers = 0
        while line := await self._answer():
            self._understood(line)
            answers += 1
        if code := await self._process.wait():
            raise MonitorError(f"its process ended with {code}{self._said()}")
        return answers

    async def _answer(self) -> bytes:
        try:
            return await self._stdout.readline()
        except ValueError as error:
            raise MonitorError(f"an answer without an end: {error}{self._said()}") from None

    def kill(self) -> None:
        """End the process and its helpers at once; without effect when they have ended."""
        self._listening.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def _stdin(self) -> asyncio.StreamWriter:
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        return self._process.stdin

    @property
    def _stdout(self) -> asyncio.StreamReader:
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        return self._process.stdout

    def _understood(self, line: bytes) -> None:
        if not line:
            raise MonitorError(f"its process ended{self._said()}")
        try:
            answer = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError as error:
            # A process that is killed while it answers leaves half a line.
            raise MonitorError(f"an answer that cannot be read: {error}{self._said()}") from None
        if (failed := answer.get("failed")) is not None:
            raise MonitorError(self._without_secrets(str(failed)))

    def _said(self) -> str:
        return f"; it said last: {self._without_secrets(self._tail).strip()}" if self._tail else ""

    def _without_secrets(self, text: str) -> str:
        for secret in self._launch.secrets.values():
            text = text.replace(secret, HIDDEN)
        return text

    async def _listen(self) -> None:
        """Keep the end of what it prints: a full pipe would stop it."""
        stderr = self._process.stderr
        while stderr is not None and (part := await stderr.read(4096)):
            self._tail = (self._tail + part.decode(errors="replace"))[-_TAIL_CHARACTERS:]
