"""One watch through the fault proxy: lines go on at once, late, or not at all, as the faults in force say."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import aiohttp
from aiohttp import web

from echorl_testing.kube.faults import Delay, Fault, Request, Silence


class WatchRelay:
    """Hands the lines of one watch on."""

    def __init__(self, request: Request, faults: list[Fault]) -> None:
        """``faults``: those in force, as the proxy changes them."""
        self.request, self._faults = request, faults
        self.aborted = False
        """Whether the client's connection is to be closed without a proper end."""
        self._interruption: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    def interrupt(self, line: bytes | None) -> None:
        """End the watch now: with this last line, or abruptly."""
        if not self._interruption.done():
            self._interruption.set_result(line)

    async def run(self, lines: aiohttp.StreamReader, response: web.StreamResponse) -> None:
        """Relay until upstream, the client or an interruption ends it."""
        relay = asyncio.ensure_future(self._relay(lines, response))
        try:
            ends: set[asyncio.Future[Any]] = {relay, self._interruption}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not self._interruption.done():
                return
            line = self._interruption.result()
            self.aborted = line is None
            if line is not None:
                with suppress(ConnectionError):
                    await response.write(line)
        finally:
            relay.cancel()
            with suppress(asyncio.CancelledError, ConnectionError, aiohttp.ClientError):
                await relay

    async def _relay(self, lines: aiohttp.StreamReader, response: web.StreamResponse) -> None:
        arrived: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue()
        reader = asyncio.ensure_future(_read(lines, arrived))
        try:
            while True:
                at, line = await arrived.get()
                await self._hold(at)
                if line is None:
                    return
                await response.write(line)
        finally:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader

    async def _hold(self, arrived_at: float) -> None:
        """Wait while a fault wants it."""
        while (fault := self._first(Silence)) is not None:
            fault.hits += 1
            await fault.ended.wait()
        if (fault := self._first(Delay)) is not None and isinstance(fault.effect, Delay):
            fault.hits += 1
            left_s = arrived_at + fault.effect.seconds - time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, left_s)):
                    await fault.ended.wait()

    def _first(self, kind: type[Silence] | type[Delay]) -> Fault | None:
        return next(
            (
                one
                for one in self._faults
                if isinstance(one.effect, kind) and not one.ended.is_set() and one.when(self.request)
            ),
            None,
        )


async def _read(lines: aiohttp.StreamReader, arrived: "asyncio.Queue[tuple[float, bytes | None]]") -> None:
    with suppress(aiohttp.ClientError, ConnectionError):
        async for line in _split(lines):
            arrived.put_nowait((time.monotonic(), line))
    arrived.put_nowait((time.monotonic(), None))


async def _split(lines: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in lines.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line + b"\n"
