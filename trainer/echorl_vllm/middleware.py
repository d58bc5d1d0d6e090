"""Guard in front of a vLLM API server: ``--middleware echorl_vllm.middleware.EngineGate``.

It adds ``/echorl/*`` (see docs/protocols.md), refuses vLLM's admin and development routes without the run's token,
refuses generation until a trained version was applied, and stamps every response with what the engine holds. Where the
engine was told its grace period, it sees to SIGTERM: no more requests, then the end of those that run. An engine that
no other one can stand in for goes on until one can, as long as its period lasts.
"""

import asyncio
import logging
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar
from urllib.parse import parse_qs

import msgspec

from echorl_core.names import (
    ENV_ADMIN_TOKEN,
    ENV_RUN_UID,
    HEADER_ATTEMPT,
    HEADER_BOOT,
    HEADER_RUN,
    HEADER_TOKEN,
    HEADER_VERSION,
    ExitCode,
    Role,
)
from echorl_core.notices import time_for_work_s
from echorl_core.run_token import is_same
from echorl_core.termination_message import message_of_end, write
from echorl_core.wire.engine import EngineIdentity, PauseRequest, StageRequest
from echorl_core.wire.weights import PolicyId
from echorl_vllm.asgi import (
    App,
    HttpError,
    Message,
    OwnRoutes,
    Receive,
    Scope,
    Send,
    header,
    read_body,
    replayed,
    send_json,
)
from echorl_vllm.bell import Bell
from echorl_vllm.control import EngineControl
from echorl_vllm.environment import bell_path
from echorl_vllm.leftovers import record_segments
from echorl_vllm.processes import end_process_tree

GENERATION_ROUTES = frozenset(
    {
        "/inference/v1/generate",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
    }
)
OPEN_ROUTES = frozenset(
    {
        "/detokenize",
        "/health",
        "/load",
        "/metrics",
        "/metrics/",
        "/ping",
        "/tokenize",
        "/v1/chat/completions/derender",
        "/v1/chat/completions/render",
        "/v1/completions/render",
        "/v1/messages/count_tokens",
        "/v1/models",
        "/version",
    }
)
"""Every route that is in neither set needs the token, so a route of a newer vLLM is closed until it is looked at."""

# Below vLLM's logger, so that its handler and format are used.
log = logging.getLogger("vllm.echorl.middleware")

T = TypeVar("T")

HAND_OVER_S = 2.0
"""Seconds that requests which are ended early have for their last tokens."""

STAYS_S = 2.0
"""Seconds for which an engine that drains stays, though it has nothing to do: it may hear that the others were given
notice, too, and it refuses at once what is on its way to it. The orchestrator looks at it once a second."""

_NOTHING_APPLIED = "-1"
_PREFIX = "/echorl/"
_LARGEST_BODY = 64 << 20
"""Bytes of a request to vLLM's own routes; a prompt of a million token ids has a tenth of it."""


def _end_engine() -> None:
    write(message_of_end(Role.INFERENCE, ExitCode.LEASE_LOST, "the pause lease ran out while weights were applied"))
    end_process_tree(ExitCode.LEASE_LOST)


def _leave(message: str) -> None:
    write(message_of_end(Role.INFERENCE, ExitCode.NOTICE, message))
    end_process_tree(ExitCode.NOTICE)


class EngineGate:
    """Pure ASGI middleware; vLLM constructs one per API server."""

    def __init__(
        self,
        app: App,
        *,
        token: str | None = None,
        run_uid: str | None = None,
        end_engine: Callable[[], object] = _end_engine,
        leave: Callable[[str], object] = _leave,
    ) -> None:
        """``end_engine`` ends the process when a lease ran out, ``leave`` after a notice, with its last words."""
        self._app = app
        self._token = token or os.environ.get(ENV_ADMIN_TOKEN)
        self._run_uid = run_uid or os.environ.get(ENV_RUN_UID)
        self._running = 0
        self._needed_until, self._is_leaving = 0.0, False
        self._eased = asyncio.Event()
        """Nothing runs any more, or it was said whether the engine is needed."""
        self._within_s, self._leave = time_for_work_s(os.environ), leave
        self._draining: asyncio.Task[None] | None = None
        self._routes = OwnRoutes(app)
        self._control = EngineControl(
            self._routes,
            run_uid=self._run_uid or "",
            running=lambda: self._running,
            end_engine=end_engine,
            bell=Bell(bell_path()),
        )
        self._calls: dict[tuple[str, str], Callable[[bytes], Awaitable[object]]] = {
            ("GET", "identity"): self._identity,
            ("POST", "stage"): lambda body: self._control.stage(_decode(body, StageRequest)),
            ("POST", "pause"): lambda body: self._control.pause(_decode(body, PauseRequest)),
            ("POST", "apply"): lambda body: self._control.apply(_decode(body, PolicyId)),
            ("POST", "resume"): lambda _: self._control.resume(),
            ("POST", "abort"): lambda _: self._control.abort(),
            ("POST", "abort_requests"): lambda _: self._control.abort_requests(),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            record_segments()
            if self._within_s is not None:
                # In place of vLLM's own handler, which ends every request at once.
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.give_notice, self._within_s)
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, self._stamped(send))
        else:
            # A websocket generates too, and no caller of ours uses one.
            await send({"type": "websocket.close", "code": 1008, "reason": "not supported yet: websockets"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._routes.remember(scope)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        try:
            self._check_caller(scope, path)
            if path.startswith(_PREFIX):
                body = await self._own_call(scope, path.removeprefix(_PREFIX), receive)
                await send_json(send, 200, msgspec.to_builtins(body))
                return
            if path in GENERATION_ROUTES:
                self._check_generation(scope)
            # vLLM would read a body of any length into memory, as slowly as it comes.
            receive = replayed(await read_body(receive, most_bytes=_LARGEST_BODY), receive)
        except HttpError as error:
            await send_json(send, error.status, {"error": str(error)})
            return
        if path not in GENERATION_ROUTES:
            await self._app(scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1
            if not self._running:
                self._eased.set()

    def give_notice(self, within_s: float) -> None:
        """End within so many seconds: when the last request has ended, or without the rest; take no more of them.

        While no other engine can stand in for it, it goes on to take requests, as long as there is time.
        """
        if self._draining is None:
            log.warning("given notice: %d requests run, %g s are left", self._running, within_s)
            self._control.noticed = True
            self._see_need()
            self._draining = asyncio.create_task(self._drain(time.monotonic() + within_s))

    def _see_need(self) -> None:
        if self._control.noticed and not self._is_leaving:
            self._control.draining = time.monotonic() >= self._needed_until

    async def _drain(self, until: float) -> None:
        hand_over, stays = until - HAND_OVER_S, 0.0
        while (now := time.monotonic()) < hand_over:
            self._see_need()
            if not self._control.draining:
                stays = 0.0
                await self._eases(min(self._needed_until, hand_over))
                continue
            stays = stays or now + STAYS_S
            if self._running:
                await self._eases(hand_over)
            elif now < stays:
                await self._eases(min(stays, hand_over))
            else:
                break
        self._is_leaving = self._control.draining = True
        left = self._running
        if left:
            # They answer with what they have, so that it is not sampled again elsewhere.
            try:
                await self._control.abort_requests()
            except Exception:
                # Their connections break off with the process.
                log.exception("requests were not ended in order")
            await self._ended(until)
        self._leave(f"given notice: {left} requests go on elsewhere" if left else "given notice: no request was open")

    async def _ended(self, until: float) -> None:
        """Wait until no request runs, at most until then."""
        while self._running and time.monotonic() < until:
            await self._eases(until)

    async def _eases(self, until: float) -> None:
        """Wait for what ``_eased`` says, at most until then."""
        self._eased.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await self._eased.wait()

    def _check_caller(self, scope: Scope, path: str) -> None:
        run = header(scope, HEADER_RUN)
        if run is not None and run != self._run_uid:
            raise HttpError(409, f"{HEADER_RUN} is {run}, this engine belongs to run {self._run_uid}")
        if path in GENERATION_ROUTES or path in OPEN_ROUTES:
            return
        if not self._has_token(scope):
            raise HttpError(403, f"{path}: needs the run's token in {HEADER_TOKEN}")

    def _has_token(self, scope: Scope) -> bool:
        return self._token is not None and is_same(header(scope, HEADER_TOKEN), self._token)

    def _check_generation(self, scope: Scope) -> None:
        # Of an update that is under way its probe is still to be answered: else its weights pass for wrong.
        if self._control.draining and not self._has_token(scope):
            raise HttpError(503, "the engine was given notice and takes no more requests")
        applied = self._control.applied
        if applied is None:
            raise HttpError(409, "no version was applied since this engine started")
        if self._control.broken:
            raise HttpError(409, "the engine ends: its model is half replaced")
        attempt = header(scope, HEADER_ATTEMPT)
        if attempt is not None and attempt != str(applied.attempt):
            raise HttpError(409, f"{HEADER_ATTEMPT} is {attempt}, the engine holds attempt {applied.attempt}")

    async def _own_call(self, scope: Scope, name: str, receive: Receive) -> object:
        method = scope["method"]
        if (method, name) == ("GET", "stage"):
            return await self._control.staged(_seconds(scope, "wait") or 0.0)
        if (method, name) == ("GET", "identity") and (needed_s := _seconds(scope, "needed")) is not None:
            self._needed_until = time.monotonic() + needed_s
            self._see_need()
            self._eased.set()
        call = self._calls.get((method, name))
        if call is None:
            methods = {known_method for known_method, known_name in self._calls if known_name == name}
            raise HttpError(405 if methods else 404, f"{method} {_PREFIX}{name}: no such call")
        return await call(await read_body(receive))

    async def _identity(self, _: bytes) -> EngineIdentity:
        return self._control.identity()

    def _stamped(self, send: Send) -> Send:
        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                held = self._control.newest
                message = {**message, "headers": [*message.get("headers", ())]}
                message["headers"] += [
                    (HEADER_BOOT.encode(), self._control.boot_id.encode()),
                    (HEADER_ATTEMPT.encode(), (_NOTHING_APPLIED if held is None else str(held.attempt)).encode()),
                    (HEADER_VERSION.encode(), (_NOTHING_APPLIED if held is None else str(held.version)).encode()),
                ]
            await send(message)

        return stamped


def _seconds(scope: Scope, name: str) -> float | None:
    given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get(name, [None])[-1]
    if given is None:
        return None
    with suppress(ValueError):
        if not math.isnan(seconds := float(given)):
            return seconds
    raise HttpError(400, f"{name} is {given!r}, accepted: a number of seconds")


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f"{kind.__name__}: {error}") from error
