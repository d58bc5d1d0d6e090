"""A worker's main: ``python -P -m echorl_orchestrator.workers.process --fd N --parent PID``.

It talks over the inherited socket N and ends with it, and with its parent, whatever environment code is doing.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from echorl_core import logs
from echorl_core.config import EnvironmentConfig, HookConfig, SandboxesConfig
from echorl_core.tether import die_with_parent
from echorl_orchestrator.failures import BadInputError
from echorl_orchestrator.workers.host import Host, error_of
from echorl_orchestrator.workers.rpc import FrameError, encode, read

if TYPE_CHECKING:
    from echorl_orchestrator.sandboxes.lent import Lending, Tell


def _load(start: dict[str, Any], tell: "Tell") -> Host:
    sandboxes = _sandboxes(start, tell)
    sys.path[:0] = start["python_path"]
    return Host(
        EnvironmentConfig.model_validate(start["environment"]),
        _hook(start["advantage"]),
        [_hook(dumped) for dumped in start["filters"]],
        evaluation=start["evaluation"],
        sandboxes=sandboxes,
    )


def _sandboxes(start: dict[str, Any], tell: "Tell") -> "Lending | None":
    if start["sandboxes"] is None:
        return None
    # Brings an HTTP client, a third of a start's work; most environments have no sandboxes.
    from echorl_orchestrator.sandboxes.lent import BrokerKey, Lending  # noqa: PLC0415

    gateway = None if start["gateway"] is None else tuple(start["gateway"])
    key = None if start["broker"] is None else BrokerKey(*start["broker"])
    return Lending(SandboxesConfig.model_validate(start["sandboxes"]), gateway, tell, key)


def _hook(dumped: dict[str, Any] | None) -> HookConfig | None:
    return None if dumped is None else HookConfig.model_validate(dumped)


class Worker:
    """Reads calls and writes answers; environment code never runs on its event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            frame = encode(message)
        except FrameError as error:
            frame = encode({"id": message.get("id"), "error": error_of(error)})
        self._writer.write(frame)

    def _reply(self, message: dict[str, Any]) -> None:
        self._loop.call_soon_threadsafe(self._send, message)

    async def serve(self) -> None:
        """Load the environment, then answer until the orchestrator is gone."""
        start = (await read(self._reader))["start"]
        try:
            host = await asyncio.to_thread(_load, start, lambda what: self._reply({"sandbox": what}))
        except BadInputError as error:
            self._send({"refused": str(error)})
            await self._writer.drain()
            return
        self._send({"ready": host.facts()})
        while True:
            message = await read(self._reader)
            if "ping" in message:
                self._send({"pong": message["ping"]})
            elif message.get("cancel"):
                host.cancel(message["id"], message["episode"])
            else:
                host.submit(message["id"], message["op"], message["episode"], message["args"], self._reply)


async def _main(descriptor: int) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    # When the orchestrator is gone, so is the reason to be here.
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        await Worker(reader, writer).serve()


def main() -> None:
    """Run one worker."""
    parser = argparse.ArgumentParser(prog="python -m echorl_orchestrator.workers.process", description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--attempt", type=int, default=0)
    chosen = parser.parse_args()
    die_with_parent(chosen.parent)
    # Ctrl-C reaches the whole foreground group; the orchestrator decides when workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What an environment prints belongs into the logs.
    os.dup2(2, 1)
    logs.configure("worker", attempt=chosen.attempt, style="console" if sys.stderr.isatty() else "json")
    asyncio.run(_main(chosen.fd))
    # Threads that hang in environment code must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
