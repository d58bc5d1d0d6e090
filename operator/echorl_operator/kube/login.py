"""kopf's way into the API server: by the same credentials as our own connection."""

import time
from collections.abc import Callable

import aiohttp
import kopf

from echorl_operator.kube.credentials import Credentials, NoCredentials

AGAIN_S = 5.0
"""Wait between two logins: a server that accepts nothing must not be asked in a tight loop."""


class Login:
    """kopf asks for a session at the start, and anew whenever the server answered 401."""

    def __init__(self, credentials: Credentials, clock: Callable[[], float] = time.monotonic) -> None:
        self._credentials, self._clock = credentials, clock
        self._last: float | None = None

    async def session(self) -> kopf.AiohttpSession:
        """A session with the credentials as they are now.

        Raises:
            kopf.TemporaryError: there was a login a moment ago, or the credentials cannot be read.
        """
        now = self._clock()
        if self._last is not None and now - self._last < AGAIN_S:
            raise kopf.TemporaryError("the API server does not accept the credentials", delay=AGAIN_S)
        try:
            if self._last is not None:
                await self._credentials.reload()
            headers = await self._credentials.headers()
        except NoCredentials as error:
            raise kopf.TemporaryError(str(error), delay=AGAIN_S) from error
        self._last = now
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._credentials.ssl),
            headers=headers,
            proxy=self._credentials.proxy,
        )
        return kopf.AiohttpSession(server=self._credentials.server, aiohttp_session=session)
