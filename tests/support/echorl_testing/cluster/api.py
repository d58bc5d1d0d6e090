"""A small synchronous client of a cluster's API, for setting tests up and for looking at what came of it."""

import json
import select
import ssl
import urllib.parse
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from http.client import HTTPSConnection
from typing import Any

from echorl_testing.cluster.credentials import Connection

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class ApiError(Exception):
    """The API server refused a request."""

    def __init__(self, method: str, path: str, code: int, status: Mapping[str, Any]) -> None:
        self.code = code
        """HTTP status."""
        self.reason = str(status.get("reason", ""))
        """As ``NotFound``, ``AlreadyExists``, ``Forbidden``, ``Invalid``."""
        self.status = status
        """The Status object of the reply."""
        super().__init__(f"{method} {path}: {code} {self.reason}: {status.get('message', '')}")


class Api:
    """Requests as one user. Paths are as in the API reference: ``/api/v1/namespaces/default/pods/x``.

    Connections stay open, one for each thread that asks at the same time. Proxies of the environment are for the world
    outside, never for this machine's own clusters.
    """

    def __init__(self, connection: Connection, *, token: str | None = None, timeout_s: float = 20.0) -> None:
        """``token``: whose requests these are; the admin's by default."""
        self._host = connection.server.removeprefix("https://")
        self._token = connection.admin_token if token is None else token
        self._timeout_s = timeout_s
        self._tls = ssl.create_default_context(cafile=str(connection.ca_file))
        self._idle: deque[HTTPSConnection] = deque()
        weakref.finalize(self, _close, self._idle)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """One request; returns the decoded reply, as text where it is no JSON.

        Raises:
            ApiError: refused.
            OSError: no answer.
        """
        url = path + ("?" + urllib.parse.urlencode(query) if query else "")
        all_headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type, **(headers or {})}
        data = None if body is None else json.dumps(body).encode()
        connection = self._open()
        try:
            connection.request(method, url, data, all_headers)
            reply = connection.getresponse()
            content = _decoded(reply.read())
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        if reply.status >= 300:
            raise ApiError(method, path, reply.status, content if isinstance(content, dict) else {"message": content})
        return content

    def _open(self) -> HTTPSConnection:
        """A connection that nobody uses; one that the API server has closed is not taken again."""
        try:
            while (found := self._idle.pop()).sock is None or _has_news(found):
                found.close()
        except IndexError:
            return HTTPSConnection(self._host, timeout=self._timeout_s, context=self._tls)
        return found

    def get(self, path: str, **query: Any) -> Any:
        """Read an object or a list."""
        return self.request("GET", path, query=query)

    def find(self, path: str) -> Any | None:
        """Read an object; None if there is none."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def create(self, path: str, body: Mapping[str, Any]) -> Any:
        """Create an object in a collection."""
        return self.request("POST", path, body)

    def patch(self, path: str, body: Any, *, content_type: str = MERGE_PATCH, **query: Any) -> Any:
        """Change an object or its subresource."""
        return self.request("PATCH", path, body, query=query, content_type=content_type)

    def apply(self, path: str, body: Mapping[str, Any], *, manager: str = "test") -> Any:
        """Server-side apply, by force."""
        return self.patch(path, body, content_type=APPLY_PATCH, fieldManager=manager, force="true")

    def delete(self, path: str, *, grace_s: int | None = None, propagation: str = "Background") -> None:
        """Delete an object; nothing happens if it is not there."""
        options = {"propagationPolicy": propagation}
        body = options if grace_s is None else {**options, "gracePeriodSeconds": grace_s}
        try:
            self.request("DELETE", path, body)
        except ApiError as error:
            if error.code != 404:
                raise

    def healthy(self) -> bool:
        """Whether the API server says that it is ready."""
        try:
            return bool(self.get("/readyz") == "ok")
        except (ApiError, OSError):
            return False


def _has_news(connection: HTTPSConnection) -> bool:
    """Whether something came that nobody asked for: the end."""
    waiting = select.poll()
    waiting.register(connection.sock, select.POLLIN)
    return bool(waiting.poll(0))


def _close(connections: deque[HTTPSConnection]) -> None:
    for connection in connections:
        connection.close()


def _decoded(content: bytes) -> Any:
    text = content.decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text


def granted(request: Callable[[], Any]) -> bool:
    """Whether a request is carried out; of a kind that is new, not at once."""
    try:
        request()
    except ApiError as error:
        if error.code not in {403, 404, 429, 503}:
            raise
        return False
    return True
