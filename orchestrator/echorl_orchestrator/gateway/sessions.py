"""All open sessions by key, and the keys of those that are over."""

import re
import secrets
from collections import OrderedDict
from collections.abc import Callable

from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.turns import SessionClosedError, SessionSpec

_REMEMBERED = 100_000


def session_key(*parts: str) -> str:
    """A key that names the parts; its random part keeps one environment's code from guessing another's session."""
    return f"{re.sub(r'[^A-Za-z0-9._-]', '-', '-'.join(parts))}-{secrets.token_hex(8)}"


class UnknownSessionError(Exception):
    """No session had this key."""


class DuplicateSessionError(Exception):
    """A session with this key is open, or was."""


class Sessions:
    """Registry of sessions. A key is used once."""

    def __init__(self) -> None:
        self._open: dict[str, GatewaySession] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        """Open sessions."""
        return len(self._open)

    @property
    def keys(self) -> list[str]:
        """Of open sessions, in the order of opening."""
        return list(self._open)

    def open(self, spec: SessionSpec, make: Callable[[SessionSpec], GatewaySession] = GatewaySession) -> GatewaySession:
        """A new session, as ``make`` makes it.

        Raises:
            DuplicateSessionError: the key was used before.
        """
        if spec.key in self._open or spec.key in self._closed:
            raise DuplicateSessionError(f"session {spec.key} exists already")
        session = make(spec)
        self._open[spec.key] = session
        return session

    def get(self, key: str) -> GatewaySession:
        """The open session ``key``.

        Raises:
            SessionClosedError: it is over.
            UnknownSessionError: it never was, or ended very long ago.
        """
        if key in self._open:
            return self._open[key]
        if key in self._closed:
            raise SessionClosedError(f"session {key} is closed")
        raise UnknownSessionError(f"no session {key}")

    async def close(self, key: str) -> None:
        """End a session: its running turns are cancelled, stragglers are refused. Unknown keys are ignored."""
        session = self._open.pop(key, None)
        if session is None:
            return
        self._closed[key] = None
        while len(self._closed) > _REMEMBERED:
            self._closed.popitem(last=False)
        await session.close()
