"""The gateway over HTTP: finds the session, plays the turn, notices who hangs up. Dialects say how bodies look."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import structlog
from aiohttp import web

from echorl_core.names import HEADER_SESSION
from echorl_orchestrator.chat.messages import MessageError
from echorl_orchestrator.codec.engine_rendering import PromptTooLongError
from echorl_orchestrator.failures import EpisodeError
from echorl_orchestrator.gateway import dialects
from echorl_orchestrator.gateway.bodies import DEEPEST, LARGEST_BODY, read_body, too_deep
from echorl_orchestrator.gateway.dialect import Dialect, Reason, Refusal
from echorl_orchestrator.gateway.sampling import SamplingRefusedError
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.sessions import Sessions, UnknownSessionError
from echorl_orchestrator.gateway.turns import SessionClosedError, Turn, TurnLimitError

_log = structlog.get_logger()
_DISCONNECT_POLL_S = 0.1

_REFUSALS: list[tuple[type[Exception], int, Reason | None]] = [
    (UnknownSessionError, 404, Reason.SESSION_NOT_FOUND),
    (SessionClosedError, 503, Reason.SESSION_CLOSED),
    (PromptTooLongError, 400, Reason.PROMPT_TOO_LONG),
    (TurnLimitError, 400, Reason.TURN_LIMIT),
    (MessageError, 400, None),
    (SamplingRefusedError, 400, Reason.UNSUPPORTED),
    (EpisodeError, 503, Reason.ENGINE),
]


def found_dialects() -> list[Dialect]:
    """The dialect of every module of ``dialects``, which each calls ``DIALECT``."""
    names = sorted(module.name for module in iter_modules(dialects.__path__))
    return [import_module(f"{dialects.__name__}.{name}").DIALECT for name in names]


class GatewayApi:
    """The HTTP routes of the gateway. ``on_bug`` hears of errors that are no refusal: the role must not go on."""

    def __init__(self, sessions: Sessions, on_bug: Callable[[BaseException], None]) -> None:
        self._sessions, self._on_bug = sessions, on_bug
        self._dialects = found_dialects()

    def routes(self, app: web.Application) -> None:
        """Add each dialect's path, alone and below ``/s/{session}``."""
        for dialect in self._dialects:
            handler = self._handler(dialect)
            app.router.add_post(dialect.path, handler)
            app.router.add_post(f"/s/{{session}}{dialect.path}", handler)

    def _handler(self, dialect: Dialect) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            answer = await self._answered(request, dialect)
            if isinstance(answer, Refusal):
                return web.json_response(dialect.refusal(answer), status=answer.status)
            return answer

        return handle

    async def _answered(self, request: web.Request, dialect: Dialect) -> web.StreamResponse | Refusal:
        key = _session_key(request)
        if key is None:
            return Refusal(401, f"no session key: give it in the path (/s/KEY/v1), {HEADER_SESSION} or a bearer")
        try:
            session = self._sessions.get(key)
            body = await _read(request)
            asked = dialect.read(body, session.spec)
            task = asyncio.ensure_future(session.turn(asked.messages, asked.tools, asked.sampling))
            turn = await _until_done_or_gone(request, task)
        except asyncio.CancelledError:
            handler = asyncio.current_task()
            if handler is not None and not handler.cancelling():
                return Refusal(503, f"session {key} was closed", Reason.SESSION_CLOSED)
            raise
        except web.HTTPException:
            raise
        except Exception as error:
            refusal = _refusal(error)
            if refusal is None:
                self._on_bug(error)
                raise
            return refusal
        if turn is None:
            _log.info("client_gone", session=key)
            return Refusal(499, "the client hung up")
        if asked.stream:
            return await _stream(request, session, turn, dialect.events(session, turn, body))
        return web.json_response(dialect.answer(session, turn))


def _session_key(request: web.Request) -> str | None:
    in_path = request.match_info.get("session")
    if in_path:
        return in_path
    header = request.headers.get(HEADER_SESSION)
    if header:
        return header
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


async def _read(request: web.Request) -> Any:
    raw = await read_body(request.clone(client_max_size=LARGEST_BODY))
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise MessageError("the body is no JSON") from None
    if too_deep(body):
        raise MessageError(f"the body nests deeper than {DEEPEST} objects and lists")
    return body


async def _until_done_or_gone(request: web.Request, task: asyncio.Task[Turn]) -> Turn | None:
    """The turn; None, and the turn is cancelled, when the client hangs up first."""
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_DISCONNECT_POLL_S)
            if not task.done() and (request.transport is None or request.transport.is_closing()):
                return None
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _stream(request: web.Request, session: GatewaySession, turn: Turn, events: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    try:
        await response.write(events.encode())
        await response.write_eof()
    except ConnectionError:
        _log.info("client_gone", session=session.spec.key, turn=turn.number)
    return response


def _refusal(error: Exception) -> Refusal | None:
    for kind, status, reason in _REFUSALS:
        if isinstance(error, kind):
            return Refusal(status, str(error), reason, getattr(error, "field", None))
    return None
