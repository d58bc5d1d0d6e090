"""Requests to a cluster's API over connections that stay open, for tests that make many at once."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from echorl_testing.cluster.api import MERGE_PATCH, ApiError
from echorl_testing.cluster.credentials import Connection

_TIMEOUT = aiohttp.ClientTimeout(total=120)
"""Many lives share this process: an answer may wait long until it is read."""
_TRIES = 3
_REPLACEMENTS = 20


class AsyncApi:
    """The admin's requests; as ``cluster.api.Api``. Use as a context manager."""

    def __init__(self, connection: Connection) -> None:
        self._server, self._token = connection.server, connection.admin_token
        self._tls = ssl.create_default_context(cafile=str(connection.ca_file))
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self._token}", "Accept-Encoding": "identity"}
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls)
        self._session = aiohttp.ClientSession(self._server, connector=connector, headers=headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """For watches; paths are enough as addresses."""
        if self._session is None:
            raise RuntimeError("not open: enter it with `async with`")
        return self._session

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Any:
        """One request; returns the decoded reply.

        Raises:
            ApiError: refused.
            aiohttp.ClientError: no answer.
        """
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": content_type}
        async with self.session.request(
            method, path, data=data, params=query, headers=headers, timeout=_TIMEOUT
        ) as reply:
            content, code = await reply.read(), reply.status
        if code >= 300:
            raise ApiError(method, path, code, _status(content))
        return msgspec.json.decode(content)

    async def get(self, path: str, **query: str) -> Any:
        """Read an object or a list."""
        return await self.request("GET", path, query=query)

    async def find(self, path: str) -> Any | None:
        """Read an object; None if there is none."""
        try:
            return await self.get(path)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def create(self, path: str, body: Any) -> Any:
        """Create an object in a collection."""
        return await self.request("POST", path, body)

    async def patch(self, path: str, body: Any, *, content_type: str = MERGE_PATCH) -> Any:
        """Change an object; tried again when somebody else changed it meanwhile."""
        for left in reversed(range(_TRIES)):
            try:
                return await self.request("PATCH", path, body, content_type=content_type)
            except ApiError as error:
                if error.code != 409 or not left:
                    raise
            await asyncio.sleep(0)
        return None

    async def replace(
        self, path: str, change: Callable[[Any], Any], *, subresource: str = "", query: Mapping[str, str] | None = None
    ) -> Any:
        """Read an object and put what ``change`` makes of it; again when somebody else changed it meanwhile.

        Raises:
            ApiError: refused, or it changes faster than anybody can edit it.
        """
        for left in reversed(range(_REPLACEMENTS)):
            body = change(await self.get(path))
            try:
                return await self.request("PUT", path + subresource, body, query=query)
            except ApiError as error:
                if error.code != 409 or not left:
                    raise
        return None

    async def delete(self, path: str, *, grace_s: int | None = None, propagation: str = "Background") -> None:
        """Delete an object; nothing happens if it is not there."""
        body: dict[str, Any] = {"propagationPolicy": propagation}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self.request("DELETE", path, body)
        except ApiError as error:
            if error.code != 404:
                raise


def _status(content: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(content)
    except msgspec.MsgspecError:
        found = None
    return found if isinstance(found, dict) else {"message": content[:500].decode(errors="replace")}
