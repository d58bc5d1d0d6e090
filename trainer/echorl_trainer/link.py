"""Patient calls of one orchestrator: one that is down is waited for with back-off, one that is silent ends the role."""

import http.client
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec
import structlog

from echorl_trainer.connections import connected
from echorl_trainer.health import Watch

log = structlog.get_logger()

CALL_TIMEOUT_S = 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
"""Between two tries. The whole gang stands still until every rank has noticed that its orchestrator is back."""


class Unreachable(Exception):
    """One call got no usable answer; worth another try."""


class OrchestratorLost(Exception):
    """The orchestrator answered nothing within the deadline."""


class Fenced(Exception):
    """The orchestrator belongs to another run or attempt: this process is out of date."""


class Refused(Exception):
    """The orchestrator does not accept what was sent: a bug on one of the two sides."""


@dataclass(frozen=True)
class HttpAnswer:
    """Status and body of a response that was read to its end."""

    status: int
    body: bytes


class Link:
    """Calls one orchestrator. Thread-safe: every call has a connection of its own."""

    def __init__(self, url: str, headers: Mapping[str, str], *, deadline_s: float, watch: Watch) -> None:
        """A failure in ``watch`` ends every wait."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"orchestrator_url: found {url!r}, accepted is http://host:port")
        self._host, self._port, self._base = parts.hostname, parts.port or 80, parts.path.rstrip("/")
        self._headers = dict(headers)
        self._deadline_s = deadline_s
        self._watch = watch
        self._last_answer = time.monotonic()
        self.failures = 0
        """Calls without a usable answer so far."""

    def once(
        self, method: str, path: str, body: bytes | None = None, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> HttpAnswer:
        """Try the call once.

        Raises:
            Unreachable: no connection, no whole answer within ``timeout_s``, or a status from 500.
            Fenced: status 409.
        """
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        try:
            with closing(connected(self._host, self._port, timeout_s)) as connection:
                connection.request(method, self._base + path, body, headers)
                response = connection.getresponse()
                answer = HttpAnswer(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        if answer.status >= 500:
            raise Unreachable(f"status {answer.status}: {excerpt(answer)}")
        self._last_answer = time.monotonic()
        if answer.status == 409:
            raise Fenced(f"{method} {path}: {excerpt(answer)}")
        return answer

    def patiently(
        self, method: str, path: str, body: bytes | None = None, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> HttpAnswer:
        """Try until there is an answer.

        Raises:
            OrchestratorLost: no call of this link was answered for ``deadline_s`` since this one began.
            Fenced: status 409.
        """
        began, pause = time.monotonic(), FIRST_PAUSE_S
        while True:
            self._watch.check()
            try:
                return self.once(method, path, body, timeout_s=timeout_s)
            except Unreachable as error:
                self.failures += 1
                silent = time.monotonic() - max(began, self._last_answer)
                if silent > self._deadline_s:
                    raise OrchestratorLost(
                        f"{method} {path}: no answer from {self._host}:{self._port} for {silent:.0f} s ({error})"
                    ) from error
                if pause == FIRST_PAUSE_S:
                    log.warning("orchestrator unreachable, trying again", call=f"{method} {path}", error=str(error))
            self._watch.failed.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def post(self, path: str, message: msgspec.Struct) -> bytes:
        """Send a JSON message until it is accepted; the answer's body.

        Raises:
            Refused: any status but 200.
        """
        answer = self.patiently("POST", path, msgspec.json.encode(message))
        if answer.status != 200:
            raise Refused(f"POST {path}: status {answer.status}: {excerpt(answer)}")
        return answer.body


def excerpt(answer: HttpAnswer) -> str:
    """The begin of a body, for a message."""
    return answer.body[:500].decode(errors="replace")
