"""A server with an engine's routes, whose adapters are tables of logprobs; what it gets wrong is chosen."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

from echorl_core.config import InferenceConfig
from echorl_core.preflight_step import PreflightStep
from echorl_core.wire.weights import PolicyAnnouncement, Probe

Fault = Literal["open", "stale", "wrong", "leaks", "slow", "refuses", "none"]
TOKENS = [3, 1, 4, 1, 5]
TOLERANCE = 1e-3


def rehearsed(versions: int = 7) -> PreflightStep:
    """Versions whose logprobs are one apart from each other."""
    found = [
        PolicyAnnouncement(
            attempt=1,
            version=version,
            kind="adapter",
            digest=f"{version:064x}",
            url=f"file:///v{version}",
            size_bytes=1,
            seconds_gather=0.0,
            probe=Probe(token_ids=TOKENS, logprobs=logprobs(version), tolerance=TOLERANCE),
        )
        for version in range(versions)
    ]
    return PreflightStep(gradient_norm=1.0, versions=found)


def logprobs(version: int) -> list[float]:
    """What a version says of the tokens."""
    return [-1.0 - version, -2.0, -3.0, -4.0]


class AdapterServer:
    """Keeps which version is applied and which requests run."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._staged: dict[str, Any] = {}
        self._version: int | None = None
        self._running: list[str] = []

    def app(self) -> web.Application:
        """Its routes."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", self._nothing),
                web.post("/echorl/stage", self._stage),
                web.get("/echorl/stage", self._status),
                web.post("/echorl/apply", self._apply),
                web.post("/echorl/pause", self._nothing),
                web.post("/echorl/resume", self._nothing),
                web.post("/v1/completions", self._complete),
            ]
        )
        return app

    async def _stage(self, request: web.Request) -> web.Response:
        self._staged = await request.json()
        return web.json_response({})

    async def _status(self, _: web.Request) -> web.Response:
        refused = self._fault == "refuses" and self._staged["version"] == 3
        state = {"state": "failed", "error": "shape [4, 8]"} if refused else {"state": "staged", "error": None}
        return web.json_response({"workers": [state]})

    async def _apply(self, _: web.Request) -> web.Response:
        if not (self._fault == "stale" and self._staged["version"] == 4):
            self._version = self._staged["version"]
        return web.json_response({"workers": []})

    async def _nothing(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self._version is None and self._fault != "open":
            return web.json_response({"error": "no version was applied"}, status=409)
        self._running.append(body["model"])
        try:
            await asyncio.sleep(0.02)
            mixed = len(set(self._running)) > 1
            if mixed and self._fault == "slow" and body["model"] == "base":
                await asyncio.sleep(1.0)
        finally:
            self._running.remove(body["model"])
        found = logprobs((self._version or 0) if body["model"] == "policy" else 0)
        if self._fault == "wrong" and self._version == 1 and body["model"] == "policy":
            found[2] += 2 * TOLERANCE
        if self._fault == "leaks" and mixed and body["model"] == "base":
            found = logprobs(self._version or 0)
        pairs = zip(TOKENS[1:], found, strict=True)
        entries = [None, *({str(token): {"logprob": value}} for token, value in pairs)]
        return web.json_response({"choices": [{"prompt_logprobs": entries}]})


@asynccontextmanager
async def serving(fault: Fault) -> AsyncIterator[str]:
    """Such a server; its URL."""
    runner = web.AppRunner(AdapterServer(fault).app())
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def main(config: Path, fault: Fault) -> None:
    """Serve where an engine's config says, until SIGTERM."""
    described = InferenceConfig.model_validate_json(config.read_text())
    web.run_app(AdapterServer(fault).app(), host=described.host, port=described.port, print=None)
