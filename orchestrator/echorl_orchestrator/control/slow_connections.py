"""Closes connections that begin no request: each holds a file descriptor, and the process has a bounded number of them.

aiohttp closes those that idle after a request (``keepalive_timeout``, 75 s), and has no limit for the time before the
first one, nor for headers that never end.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

log = structlog.get_logger()

LONGEST_S = 60.0
"""Until the first request."""
IDLE_S = 3600.0
"""After one; longer than any answer takes to send, which this does not see."""
LOOK_S = 10.0


class SlowConnections:
    """Of one application; ``watching`` is its middleware."""

    def __init__(self, *, longest_s: float = LONGEST_S, look_s: float = LOOK_S) -> None:
        self._longest_s, self._look_s = longest_s, look_s
        self._since: dict[object, float] = {}
        """When each was first seen without a request."""
        self._requests: dict[object, int] = {}
        """Those that are being handled, of connections that had any."""

    def middleware(self) -> Middleware:
        """Notes which connections have a request."""

        @web.middleware
        async def noted(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            self._requests[request.protocol] = self._requests.get(request.protocol, 0) + 1
            self._since.pop(request.protocol, None)
            try:
                return await handler(request)
            finally:
                if request.protocol in self._requests:
                    self._requests[request.protocol] -= 1

        return noted

    async def run(self, server: web.Server) -> None:
        """Look from time to time until cancelled."""
        while True:
            await asyncio.sleep(self._look_s)
            self.look(server)

    def look(self, server: web.Server) -> None:
        """Close what has been without a request for too long."""
        now, alive = time.monotonic(), set(server.connections)
        for notes in (self._since, self._requests):
            for gone in notes.keys() - alive:
                del notes[gone]
        for connection in alive:
            running = self._requests.get(connection)
            longest_s = self._longest_s if running is None else IDLE_S
            if running:
                self._since.pop(connection, None)
            elif now - self._since.setdefault(connection, now) >= longest_s:
                log.info("a connection without a request is closed", after_s=longest_s)
                connection.force_close()
                if connection.transport is not None:
                    connection.transport.close()
