"""HTTP to an endpoint: retries with deadlines, and errors that never hold its key."""

import asyncio
from http import HTTPStatus

import aiohttp

from echorl_core.config import TeacherConfig
from echorl_orchestrator.engines.admin import message_of
from echorl_orchestrator.failures import EpisodeError, ErrorKind

_BUSY = {408, 409, 425, 429, 500, 502, 503, 504}
"""Statuses that another try may change."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 20.0
"""Between two tries; each is twice as long as the one before."""


class EndpointError(EpisodeError):
    """An endpoint that refuses a request, or cannot be reached."""

    def __init__(self, kind: ErrorKind, message: str, status: int | None = None) -> None:
        super().__init__(kind, message)
        self.status = status
        """The HTTP status; None: no answer came."""


class EndpointClient:
    """Requests to one endpoint. ``start`` it before use."""

    def __init__(self, config: TeacherConfig, key: str | None = None, *, title: str = "teacher") -> None:
        """``key``: sent as a bearer token; None: none is. ``title``: what messages call it."""
        self.config = config
        self._title = title
        self.where = f"{title} {config.url}"
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the connections."""
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        timeout = aiohttp.ClientTimeout(total=self.config.request_deadline_s, sock_connect=10.0)
        # Servers queue requests themselves, or say 429.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
        self._session = aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post(self, path: str, body: bytes, *, busy_s: float | None = None) -> bytes:
        """The body of the answer to ``POST url/path``.

        Args:
            path: below the base URL.
            body: JSON.
            busy_s: how long to try while the endpoint is busy; None: as its config says.

        Raises:
            TeacherError: INVALID_RESPONSE if it refuses the request, PROVIDER if it is busy or away for too long.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.config.busy_deadline_s if busy_s is None else busy_s)
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return await self._once(path, body)
            except EndpointError as error:
                if error.kind is not ErrorKind.PROVIDER or loop.time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _once(self, path: str, body: bytes) -> bytes:
        if self._session is None:
            raise RuntimeError("the client of an endpoint is not started, or closed")
        url = f"{self.config.url.rstrip('/')}/{path}"
        where = f"{self._title} {url}"
        try:
            async with self._session.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
                raw = await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = f"{where}: {type(error).__name__}: {error}"
            raise EndpointError(ErrorKind.PROVIDER, self._without_key(reason)) from None
        if status == HTTPStatus.OK:
            return raw
        reason = self._without_key(f"{where}: HTTP {status}: {message_of(raw)}")
        raise EndpointError(ErrorKind.PROVIDER if status in _BUSY else ErrorKind.INVALID_RESPONSE, reason, status)

    def _without_key(self, text: str) -> str:
        """Servers repeat a key that they refuse."""
        return text.replace(self._key, "***") if self._key else text
