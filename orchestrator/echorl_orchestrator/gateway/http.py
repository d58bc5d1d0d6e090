"""The gateway over HTTP: finds the session, plays the turn, notices who hangs up. Dialects say how bodies look."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

import structlog
from aiohttp import web

from echorl_core.names import HEADER_SESSION
from echorl_orchestrator.chat.messages import MessageError
from echorl_orchestrator.codec.engine_rendering import PromptTooLongError
from echorl_orchestrator.failures import EpisodeError
from echorl_orchestrator.gateway import dialects
from echorl_orchestrator.gateway.bodies import DEEPEST, LARGEST_BODY, read_body, too_deep
from echorl_orchestrator.gateway.clients import ClientWatch, is_gone
from echorl_orchestrator.gateway.dialect import CountsTokens, Dialect, Reason, Refusal, TurnRequest
from echorl_orchestrator.gateway.model_list import model_list, models_refused
from echorl_orchestrator.gateway.sampling import SamplingRefusedError
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.sessions import Sessions, UnknownSessionError
from echorl_orchestrator.gateway.streams import SILENCE_S, EventStream
from echorl_orchestrator.gateway.turns import SessionClosedError, Turn, TurnLimitError

_log = structlog.get_logger()

_REFUSALS: list[tuple[type[Exception], int, Reason | None]] = [
    (UnknownSessionError, 404, Reason.SESSION_NOT_FOUND),
    (SessionClosedError, 503, Reason.SESSION_CLOSED),
    (PromptTooLongError, 400, Reason.PROMPT_TOO_LONG),
    (TurnLimitError, 400, Reason.TURN_LIMIT),
    (MessageError, 400, None),
    (SamplingRefusedError, 400, Reason.UNSUPPORTED),
    (EpisodeError, 503, Reason.ENGINE),
]

_NO_KEY = Refusal(401, f"no session key: give it in the path (/s/KEY/v1), {HEADER_SESSION}, X-Api-Key or a bearer")
_T = TypeVar("_T")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Answered = Callable[[web.Request, Dialect, GatewaySession], Awaitable[web.StreamResponse | Refusal]]


class _GoneError(Exception):
    """The client hung up."""


def found_dialects() -> list[Dialect]:
    """The dialect of every module of ``dialects``, which each calls ``DIALECT``."""
    names = sorted(module.name for module in iter_modules(dialects.__path__))
    return [import_module(f"{dialects.__name__}.{name}").DIALECT for name in names]


class GatewayApi:
    """The HTTP routes of the gateway. ``on_bug`` hears of errors that are no refusal: the role must not go on."""

    def __init__(self, sessions: Sessions, on_bug: Callable[[BaseException], None]) -> None:
        self._sessions, self._on_bug = sessions, on_bug
        self._dialects = found_dialects()
        self._clients = ClientWatch()

    def routes(self, app: web.Application) -> None:
        """Add the paths of every dialect and the list of models, alone and below ``/s/{session}``."""
        for dialect in self._dialects:
            self._add(app, "POST", dialect.path, self._handler(dialect, self._played))
            if isinstance(dialect, CountsTokens):
                self._add(app, "POST", dialect.count_path, self._handler(dialect, self._counted))
        self._add(app, "GET", "/v1/models", self._models)
        # Agents look whether the address answers before they have anything to ask.
        app.router.add_head("/", _alive)

    @staticmethod
    def _add(app: web.Application, method: str, path: str, handler: _Handler) -> None:
        app.router.add_route(method, path, handler)
        app.router.add_route(method, f"/s/{{session}}{path}", handler)

    def _handler(self, dialect: Dialect, answered: _Answered) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            key = _session_key(request)
            answer = _NO_KEY if key is None else await self._guarded(request, dialect, key, answered)
            return _refused(dialect, answer) if isinstance(answer, Refusal) else answer

        return handle

    async def _guarded(
        self, request: web.Request, dialect: Dialect, key: str, answered: _Answered
    ) -> web.StreamResponse | Refusal:
        try:
            return await answered(request, dialect, self._sessions.get(key))
        except _GoneError:
            _log.info("client_gone", session=key)
            return Refusal(499, "the client hung up")
        except web.HTTPException:
            raise
        except Exception as error:
            refusal = _refusal(error)
            if refusal is None:
                self._on_bug(error)
                raise
            return refusal

    async def _played(
        self, request: web.Request, dialect: Dialect, session: GatewaySession
    ) -> web.StreamResponse | Refusal:
        body = await _read(request)
        asked = dialect.read(body, session.spec)
        stream = EventStream(request, dialect.heartbeat) if asked.stream else None
        try:
            turn = await self._turn(request, session, asked, stream)
        except Exception as error:
            refusal = _refusal(error)
            if refusal is None or stream is None or not (stream.begun or refusal.reason in dialect.in_stream):
                raise
            return await _while_there(stream.end(dialect.failure(refusal)))
        session.facts.asked[turn.number] = asked.asked
        try:
            if stream is not None:
                return await _while_there(stream.end(dialect.events(session, turn, body)))
            return await _while_there(_sent(request, web.json_response(dialect.answer(session, turn))))
        except (_GoneError, asyncio.CancelledError):
            session.history.undelivered(turn.number)
            raise

    async def _counted(
        self, request: web.Request, dialect: Dialect, session: GatewaySession
    ) -> web.StreamResponse | Refusal:
        asked = dialect.read(await _read(request), session.spec)
        assert isinstance(dialect, CountsTokens)  # noqa: S101 - it has no such route otherwise
        tokens = await self._awaited(request, session, session.prompt_tokens(asked.messages, asked.tools))
        return web.json_response(dialect.count(tokens))

    async def _turn(
        self, request: web.Request, session: GatewaySession, asked: TurnRequest, stream: EventStream | None
    ) -> Turn:
        def unseen(turn: Turn) -> None:
            session.history.undelivered(turn.number)

        turn = session.turn(asked.messages, asked.tools, asked.sampling)
        return await self._awaited(request, session, turn, unseen, stream)

    async def _awaited(
        self,
        request: web.Request,
        session: GatewaySession,
        work: Coroutine[Any, Any, _T],
        unseen: Callable[[_T], None] = lambda _: None,
        stream: EventStream | None = None,
    ) -> _T:
        """What the session's ``work`` comes to; it is cancelled when the client hangs up first.

        ``unseen`` gets a result that came in that same instant.

        Raises:
            _GoneError: the client hung up.
            SessionClosedError: the session was closed meanwhile.
        """
        task = asyncio.ensure_future(work)
        self._clients.add(task, request)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=None if stream is None else SILENCE_S)
                if stream is not None and not task.done():
                    await _while_there(stream.keep_alive())
            if task.cancelled():
                raise _GoneError if is_gone(request) else SessionClosedError(f"session {session.spec.key} was closed")
            return task.result()
        except BaseException:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and task.exception() is None:
                unseen(task.result())
            raise

    async def _models(self, request: web.Request) -> web.StreamResponse:
        key = _session_key(request)
        try:
            if key is not None:
                self._sessions.get(key)
                return web.json_response(model_list())
        except (UnknownSessionError, SessionClosedError) as error:
            refusal = _refusal(error) or _NO_KEY
        else:
            refusal = _NO_KEY
        return web.json_response(models_refused(refusal), status=refusal.status, headers=_retry(refusal))


def _session_key(request: web.Request) -> str | None:
    in_path = request.match_info.get("session")
    if in_path:
        return in_path
    header = request.headers.get(HEADER_SESSION)
    if header:
        return header
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return bearer or request.headers.get("X-Api-Key", "").strip() or None


async def _read(request: web.Request) -> Any:
    raw = await read_body(request.clone(client_max_size=LARGEST_BODY))
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise MessageError("the body is no JSON") from None
    if too_deep(body):
        raise MessageError(f"the body nests deeper than {DEEPEST} objects and lists")
    return body


async def _while_there(writing: Awaitable[_T]) -> _T:
    try:
        return await writing
    except ConnectionError:
        raise _GoneError from None


async def _sent(request: web.Request, response: web.Response) -> web.Response:
    """The response, once it is with the client as far as anybody can know."""
    if is_gone(request):
        raise _GoneError
    await response.prepare(request)
    await response.write_eof()
    return response


async def _alive(_: web.Request) -> web.Response:
    return web.Response()


def _refused(dialect: Dialect, refusal: Refusal) -> web.Response:
    return web.json_response(dialect.refusal(refusal), status=refusal.status, headers=_retry(refusal))


def _retry(refusal: Refusal) -> dict[str, str]:
    """What keeps the vendors' clients from asking again where no answer will ever be another."""
    return {"x-should-retry": "false"} if refusal.reason is Reason.SESSION_CLOSED else {}


def _refusal(error: Exception) -> Refusal | None:
    for kind, status, reason in _REFUSALS:
        if isinstance(error, kind):
            return Refusal(status, str(error), reason, getattr(error, "field", None))
    return None
