"""The one way out of a sandbox: a listening socket of its network, of which every connection goes to one address."""

import asyncio
import contextlib
import socket

_CHUNK_BYTES = 1 << 16


class Forwarder:
    """Serves ``listener``; what arrives is carried to ``host:port``, whatever it says."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._server: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()

    async def start(self, listener: socket.socket) -> None:
        """Begin to accept."""
        listener.setblocking(False)  # noqa: FBT003
        self._server = await asyncio.start_server(self._accepted, sock=listener)

    async def close(self) -> None:
        """Cut every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, inside: asyncio.StreamReader, to_inside: asyncio.StreamWriter) -> None:
        with contextlib.closing(to_inside), contextlib.suppress(OSError):
            outside, to_outside = await asyncio.open_connection(self._host, self._port)
            with contextlib.closing(to_outside):
                ways = [asyncio.create_task(_pour(inside, to_outside)), asyncio.create_task(_pour(outside, to_inside))]
                try:
                    # When either side is done, so is the other: who hung up inside waits for no answer.
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()


async def _pour(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await source.read(_CHUNK_BYTES):
            target.write(chunk)
            await target.drain()
