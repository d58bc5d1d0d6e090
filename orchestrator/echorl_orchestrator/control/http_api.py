"""The orchestrator's HTTP server; docs/protocols.md says who calls what. Handlers only translate."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest

from echorl_core import jsonsafe, names
from echorl_core.faults import fault_point
from echorl_core.identity import RunIdentity
from echorl_core.live import LiveReply, LiveSettings
from echorl_core.run_token import is_same
from echorl_core.wire import weights
from echorl_core.wire.batch import WIRE_VERSION, StopNotice
from echorl_core.wire.reports import (
    NoticeReply,
    NoticeReport,
    PartsReply,
    PartsReport,
    RestartReply,
    RestartReport,
    StepReport,
)
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_orchestrator.attempt.live_settings import LiveRefused
from echorl_orchestrator.attempt.trainer_desk import NoSuchBatch, TrainerDesk
from echorl_orchestrator.control.slow_connections import SlowConnections
from echorl_orchestrator.gateway.bodies import LARGEST_BODY, read_body
from echorl_orchestrator.status.health import Health
from echorl_orchestrator.status.state_board import StateBoard

LONGEST_WAIT_S = 60.0

_UNREADABLE = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError)
"""What a body that is none of a message is told by; nesting without end is a RecursionError."""

T = TypeVar("T", PolicyAnnouncement, StepReport, PartsReport, NoticeReport, RestartReport)


def _decoded(data: bytes, kind: type[T]) -> T:
    return msgspec.json.decode(data, type=kind)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Actions:
    """What requests set off."""

    policy: Callable[[PolicyAnnouncement], Awaitable[None]]
    step: Callable[[StepReport], Awaitable[None]]
    parts: Callable[[PartsReport], Awaitable[PartsReply]]
    notice: Callable[[NoticeReport], Awaitable[NoticeReply]]
    restarted: Callable[[RestartReport], Awaitable[RestartReply]]
    stop: Callable[[], Awaitable[StopNotice]]
    live: Callable[[LiveSettings], Awaitable[LiveReply]]


class Api:
    """Routes for trainers, supervisor, probes and Prometheus."""

    def __init__(
        self,
        identity: RunIdentity,
        token: str,
        *,
        num_ranks: int,
        desk: TrainerDesk,
        actions: Actions,
        board: StateBoard,
        health: Health,
        registry: CollectorRegistry,
    ) -> None:
        self._identity, self._token, self._num_ranks = identity, token, num_ranks
        self._desk, self._actions = desk, actions
        self._board, self._health, self._registry = board, health, registry
        self.connections = SlowConnections()
        """Of the application."""

    def application(self) -> web.Application:
        """The app; the gateway adds its own routes to it."""
        app = web.Application(client_max_size=LARGEST_BODY, middlewares=[self.connections.middleware()])
        app.router.add_get("/trainer/batch", self._fenced(self._batch))
        app.router.add_post("/trainer/policy", self._fenced(self._policy))
        app.router.add_post("/trainer/step", self._fenced(self._step))
        app.router.add_post("/trainer/parts", self._fenced(self._parts))
        app.router.add_post("/trainer/notice", self._fenced(self._notice))
        app.router.add_post("/trainer/restart", self._fenced(self._restart))
        app.router.add_post("/control/stop", self._fenced(self._stop))
        app.router.add_post("/control/live", self._fenced(self._live))
        app.router.add_get("/state", self._state)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._metrics)
        return app

    def _fenced(self, handler: Handler) -> Handler:
        """Refuse messages of another run, attempt or wire version, of ranks of before, and without the run's token."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            refusal = self._identity.refusal(request.headers)
            if refusal is None:
                refusal = self._desk.refusal(request.headers.get(names.HEADER_RESTARTS))
            wire = request.headers.get(names.HEADER_WIRE, str(WIRE_VERSION))
            if refusal is None and wire != str(WIRE_VERSION):
                refusal = f"message of wire version {wire!r}; this is {WIRE_VERSION}"
            if refusal is not None:
                return _error(409, refusal)
            if not is_same(request.headers.get(names.HEADER_TOKEN), self._token):
                return _error(403, f"{names.HEADER_TOKEN} is missing or wrong")
            return await handler(request)

        return guarded

    async def _batch(self, request: web.Request) -> web.StreamResponse:
        try:
            step, rank = int(request.query["step"]), int(request.query["rank"])
            wait_s = _seconds(request.query.get("wait", "0"))
        except (KeyError, ValueError) as error:
            return _error(400, f"accepted is ?step=INTEGER&rank=INTEGER&wait=SECONDS: {error}")
        try:
            answer = await self._desk.pull(step, rank, wait_s)
        except NoSuchBatch as error:
            return _error(404, str(error))
        if answer is None:
            return web.Response(status=204)
        if isinstance(answer, Path):
            return _BatchFile(answer, lambda: self._sent(step, rank))
        return web.Response(status=410, body=msgspec.json.encode(answer), content_type="application/json")

    def _sent(self, step: int, rank: int) -> None:
        if self._desk.pulled(step, rank) == 1 and self._num_ranks > 1:
            fault_point("orchestrator.one_rank_pulled")

    async def _policy(self, request: web.Request) -> web.StreamResponse:
        announcement = await self._message(request, PolicyAnnouncement, weights.decode)
        self._refuse_beyond("version", announcement.version)
        await self._actions.policy(announcement)
        return web.json_response({})

    async def _step(self, request: web.Request) -> web.StreamResponse:
        report = await self._message(request, StepReport)
        self._refuse_beyond("step", report.step)
        await self._actions.step(report)
        return web.json_response({})

    async def _parts(self, request: web.Request) -> web.StreamResponse:
        report = await self._message(request, PartsReport)
        self._refuse_strange(report.rank)
        self._refuse_beyond("step", report.step)
        reply = await self._actions.parts(report)
        return web.Response(body=msgspec.json.encode(reply), content_type="application/json")

    async def _notice(self, request: web.Request) -> web.StreamResponse:
        report = await self._message(request, NoticeReport)
        self._refuse_strange(report.rank)
        reply = await self._actions.notice(report)
        return web.Response(body=msgspec.json.encode(reply), content_type="application/json")

    async def _restart(self, request: web.Request) -> web.StreamResponse:
        report = await self._message(request, RestartReport)
        self._refuse_beyond("step", report.step)
        reply = await self._actions.restarted(report)
        return web.Response(body=msgspec.json.encode(reply), content_type="application/json")

    async def _stop(self, _: web.Request) -> web.StreamResponse:
        notice = await self._actions.stop()
        return web.Response(body=msgspec.json.encode(notice), content_type="application/json")

    async def _live(self, request: web.Request) -> web.StreamResponse:
        try:
            settings = msgspec.json.decode(await read_body(request), type=LiveSettings)
            reply = await self._actions.live(settings)
        except _UNREADABLE as error:
            return _error(400, f"LiveSettings: {error}")
        except LiveRefused as refused:
            return _error(refused.status, str(refused))
        return web.Response(body=msgspec.json.encode(reply), content_type="application/json")

    def _refuse_strange(self, rank: int) -> None:
        if not 0 <= rank < self._num_ranks:
            raise _refused(web.HTTPBadRequest, f"rank: found {rank}, accepted is 0 to {self._num_ranks - 1}")

    def _refuse_beyond(self, field: str, step: int) -> None:
        """Answer 400 to what cannot have been trained: no rank was given that batch."""
        if step > self._desk.given:
            raise _refused(web.HTTPBadRequest, f"{field}: found {step}, accepted is at most {self._desk.given}")

    async def _state(self, request: web.Request) -> web.StreamResponse:
        named = names.HEADER_RUN in request.headers or names.HEADER_ATTEMPT in request.headers
        if named and (refusal := self._identity.refusal(request.headers)) is not None:
            return _error(409, refusal)
        try:
            since = int(request.query["since"]) if "since" in request.query else None
            wait_s = _seconds(request.query.get("wait", "0"))
        except ValueError as error:
            return _error(400, f"accepted is ?since=REVISION&wait=SECONDS: {error}")
        state = await self._board.wait(since, wait_s)
        return web.json_response(msgspec.to_builtins(state), dumps=jsonsafe.dumps)

    async def _healthz(self, _: web.Request) -> web.StreamResponse:
        problem = self._health.problem()
        return web.Response(status=200 if problem is None else 503, text=problem or "ok")

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        # The process-wide registry holds what single modules count.
        text = generate_latest(self._registry) + generate_latest(REGISTRY)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _message(
        self, request: web.Request, kind: type[T], decode: Callable[[bytes, type[T]], T] = _decoded
    ) -> T:
        """The body; a wrong one is answered 400, one of another attempt 409."""
        try:
            message = decode(await read_body(request), kind)
        except _UNREADABLE as error:
            raise _refused(web.HTTPBadRequest, f"{kind.__name__}: {error}") from error
        if message.attempt != self._identity.attempt:
            text = f"{kind.__name__} of attempt {message.attempt}; this is attempt {self._identity.attempt}"
            raise _refused(web.HTTPConflict, text)
        return message


class _BatchFile(web.FileResponse):
    """A rank's batch; says when it has been sent."""

    def __init__(self, path: Path, on_sent: Callable[[], None]) -> None:
        super().__init__(path, headers={"Content-Type": "application/msgpack"})
        self._on_sent = on_sent

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send the whole file (this is where FileResponse does)."""
        writer = await super().prepare(request)
        self._on_sent()
        return writer


def _seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"wait: found {text!r}, accepted are seconds from 0")
    return min(value, LONGEST_WAIT_S)


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


def _refused(kind: type[web.HTTPError], message: str) -> web.HTTPError:
    return kind(text=jsonsafe.dumps({"error": message}), content_type="application/json")
