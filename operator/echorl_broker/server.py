"""The broker over HTTP: reads requests, writes answers; ``echorl_core.wire.sandboxes`` says how they look."""

import re
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from echorl_broker.broker import Asking, Broker, NotAllowed
from echorl_broker.losses import Lost
from echorl_broker.metrics import BrokerMetrics
from echorl_broker.runs import NoSandboxes
from echorl_core.wire.sandboxes import OWNER_FORM, Keys, Pending, Ready, Refusal, Wanted, decoded
from echorl_operator.kube import errors

_LARGEST_BODY = 64 << 10
_SANDBOXES = "/runs/{namespace}/{run}/sandboxes"
_SANDBOX = f"{_SANDBOXES}/{{key}}"
_BEARER = "Bearer "

_log = structlog.get_logger()
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(broker: Broker) -> web.Application:
    """The broker's routes, and ``GET /healthz``."""

    async def create(request: web.Request) -> web.Response:
        try:
            wanted = decoded(await request.read(), Wanted)
            wait_s = float(request.query.get("wait_s", "0"))
        except (msgspec.MsgspecError, ValueError) as error:
            return _answer(400, Refusal(loss="refused", message=f"the request: {error}"))
        if not wait_s >= 0:
            return _answer(400, Refusal(loss="refused", message=f"wait_s: found {wait_s}, accepted are seconds from 0"))
        return _told(await broker.create(_asking(request), wanted, wait_s))

    async def find(request: web.Request) -> web.Response:
        return _told(await broker.find(_asking(request)))

    async def destroy(request: web.Request) -> web.Response:
        await broker.destroy(_asking(request))
        return web.Response(status=204)

    async def keys(request: web.Request) -> web.Response:
        return _answer(200, Keys(keys=await broker.keys(_asking(request))))

    async def destroy_of(request: web.Request) -> web.Response:
        owner = request.query.get("owner", "")
        if re.fullmatch(OWNER_FORM, owner) is None:
            told = f"owner: found {owner!r:.80}, accepted are 8 letters and digits"
            return _answer(400, Refusal(loss="refused", message=told))
        await broker.destroy_of(_asking(request), owner)
        return web.Response(status=204)

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application(middlewares=[_refusing], client_max_size=_LARGEST_BODY)
    app.router.add_put(_SANDBOX, create)
    app.router.add_get(_SANDBOX, find)
    app.router.add_delete(_SANDBOX, destroy)
    app.router.add_get(_SANDBOXES, keys)
    app.router.add_delete(_SANDBOXES, destroy_of)
    app.router.add_get("/healthz", healthy)
    return app


def metrics_application(metrics: BrokerMetrics) -> web.Application:
    """``GET /metrics``, which tells of all runs: on a port that no run reaches."""

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", scrape)
    return app


@web.middleware
async def _refusing(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Whatever goes wrong is told as a loss."""
    try:
        return await handler(request)
    except NotAllowed as error:
        return _answer(403, Refusal(loss="refused", message=str(error)))
    except NoSandboxes as error:
        return _answer(409, Refusal(loss="refused", message=str(error)))
    except web.HTTPException as error:
        return _answer(error.status, Refusal(loss="refused", message=error.reason))
    except (errors.Unavailable, errors.TooManyRequests, errors.Unauthorized) as error:
        _log.warning("the API server does not answer", error=str(error))
        return _answer(503, Refusal(loss="refused", message=f"the API server does not answer: {error.message:.300}"))
    except errors.ApiError as error:
        _log.error("the API server refused a call", error=str(error))
        return _answer(500, Refusal(loss="refused", message=f"the API server refused: {error.message:.300}"))


def _asking(request: web.Request) -> Asking:
    given, parts = request.headers.get("Authorization", ""), request.match_info
    token = given.removeprefix(_BEARER) if given.startswith(_BEARER) else None
    return Asking(parts["namespace"], parts["run"], token, parts.get("key", ""))


def _told(answer: Ready | Pending | Lost) -> web.Response:
    if isinstance(answer, Lost):
        return _answer(410, Refusal(loss=answer.loss, message=answer.message))
    return _answer(202 if isinstance(answer, Pending) else 200, answer)


def _answer(status: int, body: Ready | Pending | Refusal | Keys) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
