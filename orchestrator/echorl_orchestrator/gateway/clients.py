"""Clients that hang up while their answer is computed. A server's handler is not told, so somebody has to look."""

import asyncio
from typing import Any

from aiohttp import web

LOOK_S = 0.1
"""Between two looks: so long a request that nobody waits for may keep its engine."""


class ClientWatch:
    """Cancels what is computed for clients that are gone. One timer looks at all of them, so that none costs one."""

    def __init__(self) -> None:
        self._requests: dict[asyncio.Task[Any], web.Request] = {}
        self._waiting = False

    def add(self, task: "asyncio.Task[Any]", request: web.Request) -> None:
        """Cancel ``task`` when the client of ``request`` hangs up before it is done."""
        self._requests[task] = request
        task.add_done_callback(self._requests.pop)
        if not self._waiting:
            self._wait()

    def _wait(self) -> None:
        self._waiting = True
        asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._waiting = False
        for task, request in self._requests.items():
            # Once: what ends may have to wait for something itself.
            if is_gone(request) and not task.cancelling():
                task.cancel()
        if self._requests:
            self._wait()


def is_gone(request: web.Request) -> bool:
    """Whether the client of a request has hung up."""
    return request.transport is None or request.transport.is_closing()
