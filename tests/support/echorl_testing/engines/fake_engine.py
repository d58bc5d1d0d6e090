"""An engine at the wire: vLLM's token routes and our /echorl routes, with calls that can be held, failed and listed.

It stands for an external server in tests of whatever talks to engines. Its "model" has closed forms: the logprob of a
prompt token or of a sampled token depends on the version and the position alone (``logprob``).
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from echorl_core import names
from echorl_testing.engines.fake_policies import logprob, policy, probe_of
from echorl_testing.orchestrator.fake_chat import PATH, Reply, chat_answer, rendered, said, too_long
from echorl_testing.ports import free_port

__all__ = ["RUN_UID", "TOKEN", "FakeEngine", "logprob", "policy", "probe_of"]

_boots = itertools.count(1)

RUN_UID = "run-uid"
TOKEN = "admin-token"


class FakeEngine:
    """One server. Use as an async context manager; ``address`` is ``host:port``."""

    def __init__(
        self,
        *,
        run_uid: str = RUN_UID,
        workers: int = 1,
        host: str = "127.0.0.1",
        port: int = 0,
        boot_id: str | None = None,
    ) -> None:
        self.run_uid = run_uid
        self.workers = workers
        self.boot_id = boot_id or f"boot-{next(_boots)}"
        self.held: dict[str, Any] | None = None
        self.staged: dict[str, Any] | None = None
        self.stage_error: str | None = None
        self.in_place = False
        """Whether versions are applied without a pause."""
        self.healthy = True
        self.paused = False
        self.lease_lost = False
        self.wrong_by = 0.0
        """Added to every prompt logprob: an engine whose weights are not the trainer's."""
        self.tokens_per_answer = 3
        self.reply: Reply = lambda _: {"content": "ok"}
        self.max_model_len = 4096
        """For chats; longer prompts are refused."""
        self.counters: dict[str, float] = defaultdict(float)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        """Every call in order, by its route's last part (``generate``, ``pause``, ...), with body and headers."""
        self.cancelled: list[str] = []
        """Calls whose connection the caller closed."""
        self.running: set[asyncio.Event] = set()
        self.answers: dict[str, list[web.Response]] = defaultdict(list)
        """Answers to be given once each instead of the real ones, by route."""
        self._gates: dict[str, asyncio.Event] = {}
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._lease: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self.host = host
        self.port = port
        self._runner: web.AppRunner | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    async def __aenter__(self) -> "FakeEngine":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; the second time on the same port."""
        self.port = self.port or free_port()
        app = web.Application(middlewares=[self._middleware])
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post(PATH, self._chat)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_get("/echorl/identity", self._identity)
        app.router.add_post("/echorl/stage", self._stage)
        app.router.add_get("/echorl/stage", self._stage_status)
        for route in (self._pause, self._apply, self._resume, self._abort, self._abort_requests):
            app.router.add_post(f"/echorl/{route.__name__[1:]}", route)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, shutdown_timeout=0)
        await site.start()

    async def stop(self) -> None:
        """End the server with all its connections."""
        if self._lease is not None:
            self._lease.cancel()
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def reboot(self) -> None:
        """Another start of the server, as seen from outside: new boot id, no policy, old requests unanswered."""
        self.boot_id = f"boot-{next(_boots)}"
        self.held = self.staged = None
        self._wake()

    def hold(self, call: str) -> asyncio.Event:
        """Let calls to a route wait until the returned event is set."""
        return self._gates.setdefault(call, asyncio.Event())

    def fail(self, call: str, status: int = 500, times: int = 1) -> None:
        """Answer the next ``times`` calls to a route with an error."""
        for _ in range(times):
            self.answers[call].append(web.json_response({"error": f"scripted {status}"}, status=status))

    def named(self, *calls: str) -> list[str]:
        """The names of the calls seen, in order, of those given (all if none is)."""
        return [name for name, _ in self.calls if not calls or name in calls]

    def bodies(self, call: str) -> list[dict[str, Any]]:
        """What was sent to a route."""
        return [info["body"] for name, info in self.calls if name == call]

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until a condition on this engine holds; looked at after every call."""
        async with asyncio.timeout(seconds):
            while not condition():
                await self._changed.wait()

    @web.middleware
    async def _middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        name = "chat" if request.path == PATH else request.path.rsplit("/", 1)[-1]
        if (name, request.method) == ("stage", "GET"):
            name = "stage_status"
        body = await request.json() if request.can_read_body else {}
        request["body"] = body
        self.calls.append((name, {"body": body, "headers": dict(request.headers), "boot_id": self.boot_id}))
        self._wake()
        try:
            response = await self._respond(name, request, handler)
        except asyncio.CancelledError:
            self.cancelled.append(name)
            self._wake()
            raise
        response.headers[names.HEADER_BOOT] = self.boot_id
        if self.held is not None:
            response.headers[names.HEADER_ATTEMPT] = str(self.held["attempt"])
            response.headers[names.HEADER_VERSION] = str(self.held["version"])
        self._wake()
        return response

    async def _respond(
        self, name: str, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        guarded = request.path.startswith("/echorl/")
        if guarded and request.headers.get(names.HEADER_TOKEN) != TOKEN:
            return web.json_response({"error": "admin token is missing or wrong"}, status=403)
        if name in {"generate", "chat", "completions"} and self.held is None:
            return web.json_response({"error": "no policy was applied yet"}, status=409)
        if name not in {"generate", "chat"}:
            await self._gate(name)
        if self.answers[name]:
            return self.answers[name].pop(0)
        return await handler(request)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def _version(self) -> int:
        return -1 if self.held is None else int(self.held["version"])

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        lines = [f'vllm:num_requests_running{{engine="0"}} {len(self.running)}.0']
        lines += [f'vllm:{name}{{engine="0",model_name="policy"}} {value}' for name, value in self.counters.items()]
        return web.Response(text="\n".join(lines) + "\n")

    async def _generate(self, request: web.Request) -> web.Response:
        reason = await self._finished("generate")
        ids = [] if reason == "abort" else [7 + i for i in range(self.tokens_per_answer)]
        self.counters["generation_tokens_total"] += len(ids)
        start = len(request["body"]["token_ids"])
        content = [
            {"token_id": token, "logprob": logprob(self._version, start + i), "rank": 1, "top_logprobs": []}
            for i, token in enumerate(ids)
        ]
        choice = {"index": 0, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": reason}
        return web.json_response({"request_id": "r", "choices": [choice]})

    async def _chat(self, request: web.Request) -> web.Response:
        body = request["body"]
        prompt = rendered(body["messages"])
        if len(prompt) >= self.max_model_len:
            return web.json_response(too_long(len(prompt), self.max_model_len), status=400)
        reason = await self._finished("chat")
        message = self.reply(body["messages"])
        ids = said(message)[: min(body["max_completion_tokens"], self.max_model_len - len(prompt))]
        logprobs = [logprob(self._version, len(prompt) + i) for i in range(len(ids))]
        answer = chat_answer(body, ids, logprobs, message)
        if reason == "abort":
            answer["choices"][0]["finish_reason"] = reason
        return web.json_response(answer)

    async def _finished(self, name: str) -> str:
        """Wait while held or paused; "abort" if the request is ended meanwhile, else "stop"."""
        aborted = asyncio.Event()
        self.running.add(aborted)
        self._wake()
        waits = [asyncio.ensure_future(aborted.wait()), asyncio.ensure_future(self._may_finish(name))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.running.discard(aborted)
            for wait in waits:
                wait.cancel()
        return "abort" if aborted.is_set() else "stop"

    async def _may_finish(self, name: str) -> None:
        await self._gate(name)
        await self._resumed.wait()

    async def _gate(self, name: str) -> None:
        if (gate := self._gates.get(name)) is not None:
            await gate.wait()

    async def _completions(self, request: web.Request) -> web.Response:
        await self._resumed.wait()
        prompt: Sequence[int] = request["body"]["prompt"]
        positions: list[dict[str, Any] | None] = [None]
        for position in range(1, len(prompt)):
            value = logprob(self._version, position) + self.wrong_by
            positions.append({str(prompt[position]): {"logprob": value, "rank": 1, "decoded_token": "x"}})
        return web.json_response({"id": "c", "choices": [{"index": 0, "text": "x", "prompt_logprobs": positions}]})

    async def _identity(self, _: web.Request) -> web.Response:
        held = self.held or {"attempt": None, "version": None, "digest": None}
        state = {"ready": self.held is not None, "paused": self.paused, "lease_s": None, "running": len(self.running)}
        return web.json_response({"boot_id": self.boot_id, "run_uid": self.run_uid, **held, **state})

    async def _stage(self, request: web.Request) -> web.Response:
        self.staged = {key: request["body"][key] for key in ("attempt", "version", "digest")}
        return web.json_response({})

    async def _stage_status(self, _: web.Request) -> web.Response:
        state = "idle" if self.staged is None else "failed" if self.stage_error else "staged"
        staged = self.staged or {"attempt": None, "version": None, "digest": None}
        worker = {"state": state, **staged, "error": self.stage_error, "bytes": 1, "seconds": 0.1}
        worker["in_place"] = self.in_place
        # The first downloads for all.
        first = {**worker, "received_bytes": 30, "delta": "used"}
        return web.json_response({"workers": [first, *[worker] * (self.workers - 1)]})

    async def _pause(self, request: web.Request) -> web.Response:
        self.paused = True
        self._resumed.clear()
        if self._lease is not None:
            self._lease.cancel()
        self._lease = asyncio.get_running_loop().call_later(float(request["body"]["lease_s"]), self._lose_lease)
        return web.json_response({})

    def _lose_lease(self) -> None:
        self.lease_lost = True
        self._let_run()

    def _let_run(self) -> None:
        self.paused = False
        self._resumed.set()
        if self._lease is not None:
            self._lease.cancel()

    async def _apply(self, request: web.Request) -> web.Response:
        wanted = request["body"]
        if self.paused == self.in_place or self.staged != wanted:
            return web.json_response({"error": f"paused {self.paused}, staged {self.staged}"}, status=409)
        self.held = dict(wanted)
        return web.json_response({"workers": [{**wanted, "seconds": 0.1}] * self.workers})

    async def _resume(self, _: web.Request) -> web.Response:
        self._let_run()
        return web.json_response({})

    async def _abort(self, _: web.Request) -> web.Response:
        self.staged = None
        return web.json_response({})

    async def _abort_requests(self, _: web.Request) -> web.Response:
        for aborted in self.running:
            aborted.set()
        return web.json_response({})
