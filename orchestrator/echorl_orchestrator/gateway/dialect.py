"""The seam between the gateway's transport and one API's shapes. A module of ``dialects`` implements it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from echorl_core.config import SamplingConfig
from echorl_orchestrator.chat.messages import Message, Tool
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.turns import SessionSpec, Turn


@dataclass(frozen=True)
class TurnRequest:
    """A request as every dialect reads it."""

    messages: Sequence[Message]
    """The whole conversation so far, in OpenAI's form."""
    tools: Sequence[Tool]
    sampling: SamplingConfig
    stream: bool
    """The answer is asked for as server-sent events."""
    asked: Mapping[str, float] = field(default_factory=dict)
    """Sampling that the client asked for where the environment's holds; recorded with the turn."""


class Reason(StrEnum):
    """Why a request is refused, where a caller may want to tell refusals apart."""

    SESSION_NOT_FOUND = "session_not_found"
    SESSION_CLOSED = "session_closed"
    PROMPT_TOO_LONG = "context_length_exceeded"
    TURN_LIMIT = "turn_limit_exceeded"
    UNSUPPORTED = "unsupported_parameter"
    ENGINE = "engine_unavailable"


@dataclass(frozen=True)
class Refusal:
    """An answer other than a turn."""

    status: int
    """HTTP."""
    message: str
    reason: Reason | None = None
    field: str | None = None
    """The field of the request that is refused."""


class Dialect(Protocol):
    """One API: where it is served, and how its requests and answers look."""

    path: str
    """Its route, which is served below ``/s/{session}`` too."""
    heartbeat: str
    """What a stream says while the turn is computed: an event or a comment that clients skip."""
    in_stream: frozenset[Reason]
    """Refusals that clients expect as the end of a stream, even of one that has not begun."""

    def read(self, body: Any, spec: SessionSpec) -> TurnRequest:
        """What the decoded JSON of a request asks for; fields that it leaves out are the session's.

        Raises:
            MessageError: the body is none of this API.
            SamplingRefusedError: a field cannot be honoured.
        """
        ...

    def answer(self, session: GatewaySession, turn: Turn) -> dict[str, Any]:
        """The turn as the body of one answer."""
        ...

    def events(self, session: GatewaySession, turn: Turn, body: Mapping[str, Any]) -> str:
        """The finished turn as the text of a stream of server-sent events; ``body`` is the request's."""
        ...

    def refusal(self, refusal: Refusal) -> dict[str, Any]:
        """A refusal as the body of an answer."""
        ...

    def failure(self, refusal: Refusal) -> str:
        """A refusal as the end of a stream."""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """A dialect that says how long a prompt is, too. ``Dialect.read`` reads what is to be counted."""

    count_path: str
    """Its route, which is served below ``/s/{session}`` too."""

    def count(self, tokens: int) -> dict[str, Any]:
        """The length of a prompt as the body of an answer."""
        ...
