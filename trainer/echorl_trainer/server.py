"""HTTP server of one rank, in a thread of its own: /metrics, /state, /healthz, and on rank 0 the published weights.

Weights are served to those who hold the run's weights key (``echorl_core.run_token``); probes, Prometheus and people
read the rest.
"""

import asyncio
import threading
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from echorl_core import jsonsafe, names
from echorl_core.identity import RunIdentity
from echorl_core.run_token import is_same
from echorl_core.wire.broadcast import JoinRequest, Seat
from echorl_core.wire.weights import DELTA_FILE
from echorl_trainer.health import Health

START_DEADLINE_S = 30.0
JOIN_S = 8.0
"""For a worker's seat in a broadcast; its own call waits longer."""
READ_S, SLOWEST_BYTES_PER_S = 30.0, 10e6
"""How long a reader may take for a file: so many seconds, and its bytes at this rate. Memory waits for it meanwhile."""


class WeightFiles(Protocol):
    """Published versions of this host."""

    def reading(self, attempt: int, version: int, name: str) -> AbstractContextManager[Path | bytes | None]:
        """A file by its path or whole, unchanged in the block; None when that version is not kept or has no such."""
        ...


class Broadcasts(Protocol):
    """Broadcasts of published versions."""

    def join(self, attempt: int, version: int, request: JoinRequest) -> "Future[Seat]":
        """A seat, once the group is chosen; raises ValueError where there is none."""
        ...


class Server:
    """Serves one rank until the process ends."""

    def __init__(self, identity: RunIdentity, rank: int, health: Health, *, weights_key: str) -> None:
        self._identity, self._weights_key = identity, weights_key
        self._rank = rank
        self._watch, self._progress, self._metrics = health.watch, health.progress, health.metrics
        self.weights: WeightFiles | None = None
        """Set on rank 0 unless weights go by disk, once it is known which port its addresses name."""
        self.broadcasts: Broadcasts | None = None
        """Set on rank 0 in mode ``nccl``."""
        self._bound = threading.Event()
        self._port = 0

    def start(self, host: str, port: int) -> int:
        """Listen on ``host:port`` (0: any free port) and return the port.

        Raises:
            OSError: the address cannot be listened on.
            TimeoutError: the server did not come up.
        """
        self._watch.thread("server", lambda: asyncio.run(self._serve(host, port)))
        if not self._bound.wait(START_DEADLINE_S):
            raise TimeoutError(f"server on {host}:{port} did not start within {START_DEADLINE_S:.0f} s")
        self._watch.check()
        return self._port

    async def _serve(self, host: str, port: int) -> None:
        try:
            runner = web.AppRunner(self.application(), access_log=None)
            await runner.setup()
            site = web.TCPSite(runner, host, port)
            await site.start()
            self._port = runner.addresses[0][1]
        except BaseException as error:
            self._watch.fail(error)
            raise
        finally:
            self._bound.set()
        await asyncio.Event().wait()

    def application(self) -> web.Application:
        """Make the application with its routes."""
        application = web.Application()
        application.router.add_get("/metrics", self._get_metrics)
        application.router.add_get("/state", self._get_state)
        application.router.add_get("/healthz", self._get_health)
        application.router.add_get(r"/weights/a{attempt:\d+}/v{version:\d+}/{name}", self._get_weights)
        application.router.add_post(r"/weights/a{attempt:\d+}/v{version:\d+}/join", self._join)
        return application

    async def _get_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _get_state(self, _: web.Request) -> web.Response:
        who = {"run": self._identity.name, "uid": self._identity.uid, "attempt": self._identity.attempt}
        return _json({**who, "rank": self._rank, **self._progress.state()})

    async def _get_health(self, _: web.Request) -> web.Response:
        problem = self._progress.problem()
        return _json({"ok": problem is None, "reason": problem}, status=200 if problem is None else 503)

    def _refused(self, request: web.Request) -> web.Response | None:
        """The answer to whoever may not have weights."""
        if names.HEADER_RUN in request.headers and request.headers[names.HEADER_RUN] != self._identity.uid:
            return _json({"error": f"weights of run {self._identity.uid!r} only"}, status=409)
        if not is_same(request.headers.get(names.HEADER_TOKEN), self._weights_key):
            return _json({"error": f"{names.HEADER_TOKEN} is missing or wrong"}, status=403)
        return None

    async def _join(self, request: web.Request) -> web.StreamResponse:
        if (refused := self._refused(request)) is not None:
            return refused
        matched = request.match_info
        try:
            if self.broadcasts is None:
                raise ValueError("nothing is broadcast: fetch the files")
            asked = msgspec.json.decode(await request.read(), type=JoinRequest)
            seat = self.broadcasts.join(int(matched["attempt"]), int(matched["version"]), asked)
            found = await asyncio.wait_for(asyncio.wrap_future(seat), JOIN_S)
        except (ValueError, TimeoutError) as error:
            return _json({"error": str(error) or f"no group was formed in {JOIN_S:g} s"}, status=409)
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    async def _get_weights(self, request: web.Request) -> web.StreamResponse:
        if (refused := self._refused(request)) is not None:
            return refused
        matched = request.match_info
        attempt, version, name = int(matched["attempt"]), int(matched["version"]), matched["name"]
        missing = _json({"error": f"a{attempt}/v{version}/{name} is not kept; ask for the newest"}, status=404)
        if self.weights is None:
            return missing
        with self.weights.reading(attempt, version, name) as found:
            if not isinstance(found, Path):
                return missing if found is None else web.Response(body=found)
            size = found.stat().st_size
            response = await _sent(request, found, size)
        self._metrics.sent_bytes.labels("delta" if name == DELTA_FILE else "whole").inc(size)
        return response


class _SentFile(web.FileResponse):
    """A file that was sent by the handler itself; aiohttp prepares every answer once more."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return await (web.StreamResponse.prepare(self, request) if self.prepared else super().prepare(request))


async def _sent(request: web.Request, file: Path, size: int) -> web.StreamResponse:
    response = _SentFile(file)
    try:
        async with asyncio.timeout(READ_S + size / SLOWEST_BYTES_PER_S):
            await response.prepare(request)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    return response


def _json(value: dict[str, Any], *, status: int = 200) -> web.Response:
    return web.json_response(text=jsonsafe.dumps(value), status=status)
