"""One sandbox as its episode has it: the worker's end of the holder's channel."""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from echorl_orchestrator.sandboxes.contract import Command, Ended, SandboxError, SandboxLoss
from echorl_orchestrator.sandboxes.process.forward import Forwarder
from echorl_orchestrator.sandboxes.process.holder_exit import EXPIRED
from echorl_orchestrator.sandboxes.process.order import receive, send

OUTPUT_CAP_BYTES = 64 << 20
"""Of one command; what it writes beyond is read and dropped."""
_CHUNK_BYTES = 1 << 16
_END_S = 10.0
_KILL_AGAIN_S = 1.0
_LAST_OUTPUT_S = 1.0
"""After a command's end, for bytes that are still in the pipe."""


@dataclass
class _Running:
    output: IO[bytes]
    read_end: int
    ended: asyncio.Future[Ended]
    all_read: asyncio.Event
    written: int = 0


class ProcessSandbox:
    """See ``contract.Sandbox``. Belongs to the event loop that it was made on."""

    def __init__(self, key: str, guard: subprocess.Popen[bytes], channel: socket.socket, folder: Path) -> None:
        self.key = key
        self.gateway: str | None = None
        self.gone: asyncio.Future[SandboxError | None] = asyncio.get_running_loop().create_future()
        """Set once there is nothing left of it: why; None where it was destroyed."""
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._guard = guard
        self._channel = channel
        self._folder = folder
        self._forwarder: Forwarder | None = None
        self._commands: dict[str, _Running] = {}
        self._finishing: set[asyncio.Task[None]] = set()
        self._asked: dict[int, asyncio.Future[list[int]]] = {}
        self._number = 0
        self._ready: asyncio.Future[list[int]] = self._loop.create_future()
        self._watched = os.pidfd_open(guard.pid)
        self._loop.add_reader(channel.fileno(), self._hear)
        self._loop.add_reader(self._watched, self._buried)

    async def ready(self, gateway: tuple[str, int] | None) -> None:
        """Wait until commands can be started, and carry connections to ``gateway``.

        Raises:
            SandboxError: it cannot be made.
        """
        beside = await self._ready
        if beside and gateway is not None:
            listener = socket.socket(fileno=beside[0])
            self._forwarder = Forwarder(*gateway)
            self.gateway = f"http://127.0.0.1:{listener.getsockname()[1]}"
            await self._forwarder.start(listener)

    async def close(self) -> None:
        """End everything inside; returns when it is gone."""
        self._closing = True
        self._hang_up()
        try:
            async with asyncio.timeout(_END_S):
                await asyncio.shield(self.gone)
        except TimeoutError:
            self._guard.kill()
            await asyncio.shield(self.gone)
        if self._forwarder is not None:
            await self._forwarder.close()

    async def start(self, command: Command, key: str) -> None:
        """See the contract."""
        self._check()
        if key in self._commands:
            return
        stdin = _sealed(command.stdin)
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            os.set_blocking(read_end, False)
            output = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed with the sandbox
            running = _Running(output, read_end, self._loop.create_future(), asyncio.Event())
            self._commands[key] = running
            self._loop.add_reader(read_end, self._drain, running)
            asked = {
                "do": "start",
                "key": key,
                "argv": list(command.argv),
                "environment": dict(command.environment),
                "workdir": command.workdir,
                "root": command.root,
            }
            await self._call(asked, [stdin, write_end])
        finally:
            os.close(stdin)
            os.close(write_end)

    async def wait(self, key: str, timeout_s: float) -> Ended | None:
        """See the contract."""
        running = self._commands[key]
        await self._end_of(running, timeout_s)
        if running.ended.done():
            return running.ended.result()
        self._check()
        return None

    async def output(self, key: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """See the contract."""
        running = self._commands[key]
        self._check()
        return os.pread(running.output.fileno(), limit, offset)

    async def kill(self, key: str) -> None:
        """See the contract."""
        running = self._commands[key]
        while not running.ended.done():
            self._check()
            await self._call({"do": "kill", "key": key})
            await self._end_of(running, _KILL_AGAIN_S)

    async def read(self, path: str, limit: int = 64 << 20) -> bytes:
        """See the contract."""
        with os.fdopen((await self._call({"do": "open", "path": path}))[0], "rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise OSError(f"{path}: is longer than {limit} bytes")
        return data

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, root: bool = False) -> None:
        """See the contract. Root and the agent are one owner here."""
        if not path.startswith("/"):
            raise OSError(f"path: found {path!r}, accepted is an absolute one")
        with os.fdopen(os.memfd_create("write"), "r+b") as file:
            file.write(data)
            file.flush()
            asked = {"do": "write", "path": path, "mode": mode, "sha256": hashlib.sha256(data).hexdigest()}
            await self._call(asked, [file.fileno()])

    async def _end_of(self, running: _Running, timeout_s: float) -> None:
        ends: list[asyncio.Future[Any]] = [running.ended, self.gone]
        await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    def _check(self) -> None:
        if self.gone.done():
            raise self._lost()

    def _lost(self) -> SandboxError:
        why = self.gone.result()
        if why is None:
            return SandboxError(SandboxLoss.LOST, f"sandbox {self.key} was destroyed")
        return SandboxError(why.loss, why.message)

    async def _call(self, asked: dict[str, Any], descriptors: Sequence[int] = ()) -> list[int]:
        """What came beside the answer; the caller owns it."""
        self._check()
        self._number += 1
        answer: asyncio.Future[list[int]] = self._loop.create_future()
        self._asked[self._number] = answer
        try:
            send(self._channel, asked | {"number": self._number}, descriptors)
        except OSError as error:
            del self._asked[self._number]
            raise SandboxError(SandboxLoss.LOST, f"it does not listen: {error}") from error
        return await answer

    def _hear(self) -> None:
        try:
            told = receive(self._channel)
        except BlockingIOError:
            return
        except OSError:
            told = None
        if told is None:
            self._hang_up()
            return
        said, beside = told
        if "ended" in said:
            ended = Ended(said["code"], said["killed"], said["out_of_memory"])
            finishing = self._loop.create_task(self._finish(self._commands[said["ended"]], ended))
            self._finishing.add(finishing)
            finishing.add_done_callback(self._finishing.discard)
        elif "to" in said:
            self._settle(self._asked.pop(said["to"]), said, beside)
        elif "ready" in said:
            self._ready.set_result(beside)
        else:
            self._ready.set_exception(SandboxError(SandboxLoss.REFUSED, f"it cannot be made: {said['error']}"))

    @staticmethod
    def _settle(answer: asyncio.Future[list[int]], said: dict[str, Any], beside: list[int]) -> None:
        if answer.done():
            for descriptor in beside:
                os.close(descriptor)
        elif "error" in said:
            answer.set_exception(OSError(said["errno"], said["error"]))
        else:
            answer.set_result(beside)

    def _drain(self, running: _Running) -> None:
        try:
            chunk = os.read(running.read_end, _CHUNK_BYTES)
        except BlockingIOError:
            return
        kept = chunk[: OUTPUT_CAP_BYTES - running.written]
        if kept:
            running.output.write(kept)
            running.output.flush()
            running.written += len(kept)
        if not chunk:
            self._stop_reading(running)

    def _stop_reading(self, running: _Running) -> None:
        if not running.all_read.is_set():
            self._loop.remove_reader(running.read_end)
            os.close(running.read_end)
            running.all_read.set()

    async def _finish(self, running: _Running, ended: Ended) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_OUTPUT_S):
                await running.all_read.wait()
        self._stop_reading(running)
        if not running.ended.done():
            running.ended.set_result(ended)

    def _hang_up(self) -> None:
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel.fileno())
            self._channel.close()

    def _buried(self) -> None:
        """The guard has ended, and with it everything."""
        self._loop.remove_reader(self._watched)
        os.close(self._watched)
        expired = self._guard.wait() == EXPIRED
        self._hang_up()
        if expired:
            self.gone.set_result(SandboxError(SandboxLoss.EXPIRED, f"sandbox {self.key} outlived its ttl"))
        elif self._closing:
            self.gone.set_result(None)
        else:
            self.gone.set_result(SandboxError(SandboxLoss.LOST, f"sandbox {self.key} is not there any more"))
        for answer in (*self._asked.values(), self._ready):
            if not answer.done():
                answer.set_exception(self._lost())
        self._asked.clear()
        for running in self._commands.values():
            self._stop_reading(running)
            running.output.close()


def _sealed(data: bytes) -> int:
    """A descriptor to read ``data`` from, which nobody can write to."""
    made = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(os.dup(made), "wb") as file:
        file.write(data)
    os.lseek(made, 0, os.SEEK_SET)
    fcntl.fcntl(
        made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    )
    return made
