"""Raw requests to the API server over one session, with our own time-outs."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from types import TracebackType
from typing import Any, Final

import aiohttp
import msgspec

from echorl_operator.kube import errors
from echorl_operator.kube.credentials import Credentials, NoCredentials
from echorl_operator.metrics import ProcessMetrics

CONNECT_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 30.0
USER_AGENT: Final = f"echorl-operator/{version('echorl-operator')}"

JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"

_METHODS: Final = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "apply": "PATCH",
    "patch": "PATCH",
    "delete": "DELETE",
}
_CONTENT_TYPES: Final = {"apply": APPLY, "patch": MERGE_PATCH}


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    verb: str
    """Kubernetes' word: get, list, watch, create, update, apply, patch or delete."""
    path: str
    """The path, as ``Resource.path`` gives it."""
    resource: str
    """Plural, with ``/status`` and the like; for metrics."""
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    """Sent as JSON; bytes are sent as they are."""
    content_type: str = ""
    """Content type of the body; empty stands for what the verb needs (merge patch for patch)."""
    accept: str = JSON
    """Media type of the reply."""
    timeout_s: float = REQUEST_TIMEOUT_S
    """Deadline of the whole call, connecting included; for a watch, its longest silence."""

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"

    def data(self) -> bytes | None:
        """The body as bytes."""
        return self.body if self.body is None or isinstance(self.body, bytes) else msgspec.json.encode(self.body)


class Connection:
    """One API server. Use as a context manager."""

    def __init__(self, credentials: Credentials, metrics: ProcessMetrics, user_agent: str = USER_AGENT) -> None:
        self._credentials, self._metrics, self._user_agent = credentials, metrics, user_agent
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Connection":
        await self._credentials.load()
        # No limit: every watch holds a connection, and workers bound the rest.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=0),
            # Compression costs both ends more than a cluster's network does.
            headers={"User-Agent": self._user_agent, "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(self, call: Call) -> bytes:
        """Make one call; a 401 is tried once more with credentials that are read anew. Returns the reply's body.

        Raises:
            errors.ApiError: the call failed; the type says how.
        """
        try:
            return await self._request(call)
        except errors.Unauthorized:
            if not await self._reload(call):
                raise
        return await self._request(call)

    async def watch(self, call: Call) -> AsyncGenerator[bytes, None]:
        """Lines of one watch until the server ends it. Close the generator (``contextlib.aclosing``) to end it earlier.

        Raises:
            errors.ApiError: the watch was refused or broke; ``Unavailable`` also after the longest silence.
        """
        started = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=call.timeout_s)
        try:
            response = await self._open(call, timeout)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._failed(call, error) from error
        async with response:
            self._count(call, str(response.status), started)
            if response.status >= 300:
                await self._refuse(call, response)
            try:
                async for line in _lines(response.content):
                    yield line
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise errors.Unavailable(str(call), _describe(error)) from error

    async def _refuse(self, call: Call, response: aiohttp.ClientResponse) -> None:
        if response.status == 401:
            await self._reload(call)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            body = b""
        raise errors.from_reply(str(call), response.status, body, response.headers.get("Retry-After"))

    async def _request(self, call: Call) -> bytes:
        started = time.monotonic()
        connect_s = min(CONNECT_TIMEOUT_S, call.timeout_s)
        try:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s)
            # Not aiohttp's own total: a cancellation that comes as it ends is lost (3.14).
            async with asyncio.timeout(call.timeout_s), await self._open(call, timeout) as response:
                reply, status = await response.read(), response.status
                wait = response.headers.get("Retry-After")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._failed(call, error) from error
        self._count(call, str(status), started)
        if status >= 300:
            raise errors.from_reply(str(call), status, reply, wait)
        return reply

    async def _open(self, call: Call, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("the connection is not open: enter it with `async with`")
        try:
            headers = {"Accept": call.accept, **await self._credentials.headers()}
        except NoCredentials as error:
            raise errors.Unauthorized(str(call), str(error)) from error
        data = call.data()
        if data is not None:
            headers["Content-Type"] = call.content_type or _CONTENT_TYPES.get(call.verb, JSON)
        return await self._session.request(
            _METHODS[call.verb],
            self._credentials.server + call.path,
            params=call.query,
            data=data,
            headers=headers,
            timeout=timeout,
            ssl=self._credentials.ssl,
            server_hostname=self._credentials.server_name,
            proxy=self._credentials.proxy,
            allow_redirects=False,
        )

    async def _reload(self, call: Call) -> bool:
        try:
            return await self._credentials.reload()
        except NoCredentials as error:
            raise errors.Unauthorized(str(call), str(error), status=401) from error

    def _failed(self, call: Call, error: Exception) -> errors.Unavailable:
        code = "timeout" if isinstance(error, TimeoutError) else "connection"
        self._metrics.api_requests.labels(call.verb, call.resource, code).inc()
        return errors.Unavailable(str(call), _describe(error))

    def _count(self, call: Call, code: str, started: float) -> None:
        self._metrics.api_requests.labels(call.verb, call.resource, code).inc()
        if call.verb != "watch":
            self._metrics.api_seconds.labels(call.verb, call.resource).observe(time.monotonic() - started)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """Lines of any length; aiohttp's own reader refuses those over its buffer, and objects may take megabytes."""
    parts: list[bytes] = []
    async for chunk in content.iter_any():
        first, *others = chunk.split(b"\n")
        parts.append(first)
        for other in others:
            line = b"".join(parts)
            parts = [other]
            if line:
                yield line
