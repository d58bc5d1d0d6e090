"""OpenAI chat completions over HTTP, plain and as server-sent events: an adapter over ``GatewaySession.turn``."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import structlog
from aiohttp import web

from echorl_core.names import HEADER_SESSION, SERVED_MODEL_NAME
from echorl_orchestrator.chat.messages import MessageError, wire_message
from echorl_orchestrator.codec.engine_rendering import PromptTooLongError
from echorl_orchestrator.failures import EpisodeError
from echorl_orchestrator.gateway.sampling import SamplingRefusedError, requested_sampling
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.sessions import Sessions, UnknownSessionError
from echorl_orchestrator.gateway.turns import SessionClosedError, Turn, TurnLimitError

_log = structlog.get_logger()
_DISCONNECT_POLL_S = 0.1
_CHUNK_CHARACTERS = 256
_MAX_BODY_BYTES = 64 * 2**20


def _error(status: int, message: str, kind: str, *, code: str | None = None, param: str | None = None) -> web.Response:
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return web.json_response(body, status=status)


def _session_key(request: web.Request) -> str | None:
    in_path = request.match_info.get("session")
    if in_path:
        return in_path
    header = request.headers.get(HEADER_SESSION)
    if header:
        return header
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


async def _read(request: web.Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.clone(client_max_size=_MAX_BODY_BYTES).read())
    except (ValueError, RecursionError):
        raise MessageError("the body is no JSON") from None
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise MessageError("messages: missing; accepted is a list of chat messages")
    tools = body.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise MessageError("tools: accepted is a list of tool definitions")
    try:
        json.dumps(tools, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise MessageError(f"tools: found half a surrogate pair; accepted is text: {error}") from None
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


async def _take_turn(request: web.Request, session: GatewaySession) -> tuple[dict[str, Any], Turn | None]:
    body = await _read(request)
    sampling = requested_sampling(body, session.spec.sampling, evaluation=session.spec.evaluation)
    tools = body.get("tools") or [] if body.get("tool_choice") != "none" else []
    task = asyncio.ensure_future(session.turn(body["messages"], tools, sampling))
    return body, await _until_done_or_gone(request, task)


def _usage(turn: Turn) -> dict[str, int]:
    return {
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": turn.completion_tokens,
        "total_tokens": turn.prompt_tokens + turn.completion_tokens,
    }


def _head(session: GatewaySession, turn: Turn, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{session.spec.key}-{turn.number}",
        "object": kind,
        "created": int(time.time()),
        "model": SERVED_MODEL_NAME,
    }


def completion(session: GatewaySession, turn: Turn) -> dict[str, Any]:
    """The turn as one chat completion."""
    choice = {"index": 0, "message": wire_message(turn.message), "finish_reason": turn.finish_reason, "logprobs": None}
    return {**_head(session, turn, "chat.completion"), "choices": [choice], "usage": _usage(turn)}


def chunks(session: GatewaySession, turn: Turn, *, usage: bool) -> Iterator[dict[str, Any]]:
    """The finished turn as the chunks of a stream; the last one before ``[DONE]`` has the usage if asked for."""
    head = _head(session, turn, "chat.completion.chunk")
    message = wire_message(turn.message)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for field in ("reasoning_content", "content"):
        text = message.get(field) or ""
        pieces = [text[start : start + _CHUNK_CHARACTERS] for start in range(0, len(text), _CHUNK_CHARACTERS)]
        deltas += [{field: piece} for piece in pieces]
    deltas += [{"tool_calls": [{"index": n, **call}]} for n, call in enumerate(message.get("tool_calls", ()))]
    for delta in deltas:
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": turn.finish_reason}]}
    if usage:
        yield {**head, "choices": [], "usage": _usage(turn)}


async def _stream(request: web.Request, session: GatewaySession, turn: Turn, *, usage: bool) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    events = "".join(
        f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chunks(session, turn, usage=usage)
    )
    try:
        await response.write(f"{events}data: [DONE]\n\n".encode())
        await response.write_eof()
    except ConnectionError:
        _log.info("client_gone", session=session.spec.key, turn=turn.number)
    return response


_REFUSALS: list[tuple[type[Exception], int, str, str | None]] = [
    (UnknownSessionError, 404, "invalid_request_error", "session_not_found"),
    (SessionClosedError, 503, "server_error", "session_closed"),
    (PromptTooLongError, 400, "invalid_request_error", "context_length_exceeded"),
    (TurnLimitError, 400, "invalid_request_error", "turn_limit_exceeded"),
    (MessageError, 400, "invalid_request_error", None),
    (SamplingRefusedError, 400, "invalid_request_error", "unsupported_parameter"),
    (EpisodeError, 503, "server_error", "engine_unavailable"),
]


def _refusal(error: Exception) -> web.Response | None:
    for kind, status, name, code in _REFUSALS:
        if isinstance(error, kind):
            return _error(status, str(error), name, code=code, param=getattr(error, "field", None))
    return None


class ChatApi:
    """The HTTP routes of the gateway. ``on_bug`` hears of errors that are no refusal: the role must not go on."""

    def __init__(self, sessions: Sessions, on_bug: Callable[[BaseException], None]) -> None:
        self._sessions = sessions
        self._on_bug = on_bug

    def routes(self, app: web.Application) -> None:
        """Add ``/v1/chat/completions`` and ``/s/{session}/v1/chat/completions``."""
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/s/{session}/v1/chat/completions", self._complete)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        key = _session_key(request)
        if key is None:
            return _error(
                401,
                f"no session key: give it in the path (/s/KEY/v1), {HEADER_SESSION} or a bearer",
                "invalid_request_error",
            )
        try:
            session = self._sessions.get(key)
            body, turn = await _take_turn(request, session)
        except asyncio.CancelledError:
            handler = asyncio.current_task()
            if handler is not None and not handler.cancelling():
                return _error(503, f"session {key} was closed", "server_error", code="session_closed")
            raise
        except Exception as error:
            refusal = _refusal(error)
            if refusal is None:
                self._on_bug(error)
                raise
            return refusal
        if turn is None:
            _log.info("client_gone", session=key)
            return _error(499, "the client hung up", "invalid_request_error")
        if body.get("stream"):
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            return await _stream(request, session, turn, usage=usage)
        return web.json_response(completion(session, turn))
