"""Small pieces of ASGI: JSON answers, request bodies, and requests that an app sends to itself."""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from echorl_core import jsonsafe

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_MAX_BODY_BYTES = 1 << 20
BODY_S = 60.0
"""For a whole body to arrive."""


class HttpError(Exception):
    """Ends a request with a status and ``{"error": message}``."""

    def __init__(self, status: int, message: str, *, inner: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.inner = inner
        """What the app's own route answered, when that is the reason."""


async def send_json(send: Send, status: int, body: Any) -> None:
    """Answer with JSON."""
    data = jsonsafe.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


async def read_body(receive: Receive, *, most_bytes: int = _MAX_BODY_BYTES, within_s: float = BODY_S) -> bytes:
    """The whole body of a request.

    Raises:
        HttpError: 413 beyond ``most_bytes``; 408 when it does not arrive in time; 400 when the client left.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(within_s):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise HttpError(400, "the client left before its request was read")
                body += message.get("body", b"")
                if len(body) > most_bytes:
                    raise HttpError(413, f"body is longer than {most_bytes} bytes")
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise HttpError(408, f"the body did not arrive within {within_s:g} s") from None


def replayed(body: bytes, receive: Receive) -> Receive:
    """``receive`` of a request whose body was read already; it goes on where the client may still leave."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def header(scope: Scope, name: str) -> str | None:
    """Value of a request header, if it is there; names match in any case."""
    wanted = name.lower().encode()
    raw: bytes | None = next((value for key, value in scope["headers"] if key.lower() == wanted), None)
    return None if raw is None else raw.decode("latin-1")


class OwnRoutes:
    """Calls an app's own routes in process, without network, and without the middleware around it."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._owner: Any = None

    def remember(self, scope: Scope) -> None:
        """Keep the object that handlers reach as ``request.app``; every real request names it."""
        self._owner = scope.get("app")

    async def call(self, method: str, path: str, *, query: str = "", body: Any = None, deadline_s: float) -> Any:
        """Send a JSON request to a route and return its decoded answer.

        Raises:
            HttpError: the route failed or answered other than 200 (502), or took longer than ``deadline_s`` (504).
        """
        data = b"" if body is None else json.dumps(body).encode()
        status, parts = 0, bytearray()
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if sent:
                # The client of this request never leaves.
                await asyncio.Event().wait()
            sent = True
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                parts.extend(message.get("body", b""))

        try:
            async with asyncio.timeout(deadline_s):
                await self._app(self._scope(method, path, query, len(data)), receive, send)
        except TimeoutError:
            raise HttpError(504, f"{path}: no answer from the engine within {deadline_s:g} s") from None
        except Exception as error:
            raise HttpError(502, f"{path}: {type(error).__name__}: {error}") from error
        if status != 200:
            raise HttpError(502, f"{path}: HTTP {status} {bytes(parts[:500]).decode(errors='replace')}", inner=status)
        return json.loads(parts) if parts else None

    def _scope(self, method: str, path: str, query: str, length: int) -> Scope:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [
                (b"host", b"engine"),
                (b"content-type", b"application/json"),
                (b"content-length", str(length).encode()),
            ],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
            "state": {},
            "app": self._owner,
        }
