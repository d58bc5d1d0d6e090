"""An engine at the wire: vLLM's token routes and our /echorl routes, with calls that can be held, failed and listed.

It stands for an external server in tests of whatever talks to engines. Its "model" has closed forms: the logprob of a
prompt token or of a sampled token depends on the version and the position alone (``logprob``).
"""

import asyncio
import base64
import io
import itertools
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
from aiohttp import web

from echorl_core import names
from echorl_core.routing import RouterShape
from echorl_testing.engines.fake_policies import logprob, policy, probe_of, routed
from echorl_testing.orchestrator.fake_chat import END, Reply, derendered, rendered, said, too_long, unrendered
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
        self.noticed = False
        """It was given notice: it refuses new requests while it hears that it is not needed."""
        self.draining = False
        """It refuses them."""
        self.paused = False
        self.lease_lost = False
        self.wrong_by = 0.0
        """Added to every prompt logprob: an engine whose weights are not the trainer's."""
        self.tokens_per_answer = 3
        self.token_s = 0.0
        """That each token behind the first takes."""
        self.next_token: Callable[[Sequence[int]], int] | None = None
        """Of a prefix; None: 7, 8, ... ``tokens_per_answer`` of them, whatever the prompt."""
        self.interval: int | None = None
        """Tokens of an event behind the first; None: as many as are asked for."""
        self.breaks: list[tuple[int, str]] = []
        """How the next streams break off, one each: behind so many tokens, by ``cut`` (no more bytes), ``half`` (in the
        middle of an event), ``end`` (a whole answer without a reason), ``abort``, ``error``, or ``still`` (nothing)."""
        self.reply: Reply = lambda _: {"content": "ok"}
        self.routing: RouterShape | None = None
        """Of a mixture: the last event of a stream then says which experts tokens went to (``routed``)."""
        self.routing_by = 0
        """What tells its choices from another engine's."""
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
        self.streams: list[web.Response] = []
        """Answers to be given once each to ``generate`` as they are; those of ``answers`` become a stream's event."""
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
        app.router.add_post("/v1/chat/completions/render", self._render)
        app.router.add_post("/v1/chat/completions/derender", self._derender)
        app.router.add_post("/tokenize", self._tokenize)
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
        name = request.path.rsplit("/", 1)[-1]
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
        if not response.prepared:
            self._stamp(response)
        self._wake()
        return response

    def _stamp(self, response: web.StreamResponse) -> None:
        response.headers[names.HEADER_BOOT] = self.boot_id
        if self.held is not None:
            response.headers[names.HEADER_ATTEMPT] = str(self.held["attempt"])
            response.headers[names.HEADER_VERSION] = str(self.held["version"])

    async def _respond(
        self, name: str, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        guarded = request.path.startswith("/echorl/")
        if guarded and request.headers.get(names.HEADER_TOKEN) != TOKEN:
            return web.json_response({"error": "admin token is missing or wrong"}, status=403)
        if name in {"generate", "completions"} and self.held is None:
            return web.json_response({"error": "no policy was applied yet"}, status=409)
        if name == "generate" and self.draining:
            return web.json_response({"error": "given notice"}, status=503)
        if name != "generate":
            await self._gate(name)
        if name == "generate" and self.streams:
            return self.streams.pop(0)
        if self.answers[name]:
            answer = self.answers[name].pop(0)
            if name == "generate" and answer.status == 200:
                events = b"data: " + bytes(answer.body or b"") + b"\n\ndata: [DONE]\n\n"  # type: ignore[arg-type]
                return web.Response(body=events, content_type="text/event-stream")
            return answer
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

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        """As vLLM streams: one token, then ``stream_interval`` to an event."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self._stamp(response)
        await response.prepare(request)
        params, prompt = request["body"]["sampling_params"], request["body"]["token_ids"]
        reason = await self._finished("generate")
        ids, reason = ([], reason) if reason == "abort" else self._sampled(prompt, params)
        end, how = self.breaks.pop(0) if self.breaks else (len(ids) + 1, "")
        begin = 0
        while begin < min(len(ids), end) or not ids:
            after = min(begin + (self.interval or params["stream_interval"] if begin else 1), len(ids), end)
            self.counters["generation_tokens_total"] += after - begin
            last = reason if after == len(ids) else None
            if begin and self.token_s:
                await asyncio.sleep((after - begin) * self.token_s)
            told = None if last is None else self._routed(params, len(prompt) + after)
            await response.write(self._event(ids[begin:after], len(prompt) + begin, last, told))
            begin = after
            if not ids:
                break
        if begin == end:
            told = self._routed(params, len(prompt) + begin) if how == "abort" else None
            return await self._break(request, response, how, told)
        await response.write(b"data: [DONE]\n\n")
        return response

    def _sampled(self, prompt: list[int], params: dict[str, Any]) -> tuple[list[int], str]:
        if (talk := unrendered(prompt)) is not None:
            messages, begun = talk
            left = said(self.reply(messages))[len(begun) :][: params["max_tokens"]]
            return left, "stop" if left[-1] == END else "length"
        if self.next_token is None:
            return [7 + i for i in range(self.tokens_per_answer)], "stop"
        ids: list[int] = []
        while len(ids) < params["max_tokens"]:
            ids.append(self.next_token([*prompt, *ids]))
            if ids[-1] in params["stop_token_ids"]:
                return ids, "stop"
        return ids, "length"

    def _routed(self, params: dict[str, Any], tokens: int) -> str | None:
        if self.routing is None:
            return None
        start, file = params["routed_experts_prompt_start"], io.BytesIO()
        np.save(file, routed(self.routing, self.routing_by, range(start, tokens - 1)), allow_pickle=False)
        return base64.b64encode(file.getvalue()).decode()

    def _event(self, ids: Sequence[int], start: int, reason: str | None, experts: str | None = None) -> bytes:
        content = [
            {"token_id": token, "logprob": logprob(self._version, start + i), "rank": 1, "top_logprobs": []}
            for i, token in enumerate(ids)
        ]
        choice = {"index": 0, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": reason}
        choice |= {} if experts is None else {"routed_experts": experts}
        return b"data: " + json.dumps({"request_id": "r", "choices": [choice]}).encode() + b"\n\n"

    async def _break(
        self, request: web.Request, response: web.StreamResponse, how: str, experts: str | None
    ) -> web.StreamResponse:
        if how == "still":
            await asyncio.Event().wait()
        if how == "half":
            await response.write(self._event([1], 0, "stop")[:-9])
        if how == "abort":
            await response.write(self._event([], 0, "abort", experts))
        if how == "error":
            await response.write(b'data: {"error": {"message": "scripted error", "code": 500}}\n\ndata: [DONE]\n\n')
        if how in {"cut", "half"} and request.transport is not None:
            for _ in range(5):
                await asyncio.sleep(0)  # a client on this loop reads what was sent: aiohttp's drops it at an error
            request.transport.close()
        return response

    async def _render(self, request: web.Request) -> web.Response:
        body = request["body"]
        prompt = rendered(body["messages"])
        if len(prompt) >= self.max_model_len:
            return web.json_response(too_long(len(prompt), self.max_model_len), status=400)
        room = min(body["max_completion_tokens"], self.max_model_len - len(prompt))
        return web.json_response({"token_ids": prompt, "sampling_params": {"max_tokens": room, "stop_token_ids": []}})

    async def _derender(self, request: web.Request) -> web.Response:
        body = request["body"]
        (choice,) = body["generate_response"]["choices"]
        message = derendered(choice["token_ids"], self.reply(body["chat_request"]["messages"]))
        return web.json_response({"choices": [{"index": 0, "message": message}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        tokens = rendered(request["body"]["messages"])
        return web.json_response({"count": len(tokens), "max_model_len": self.max_model_len, "tokens": tokens})

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

    async def _identity(self, request: web.Request) -> web.Response:
        if self.noticed:
            self.draining = not float(request.query.get("needed", 0))
        held = self.held or {"attempt": None, "version": None, "digest": None}
        state = {"ready": self.held is not None, "paused": self.paused, "lease_s": None, "running": len(self.running)}
        state |= {"noticed": self.noticed, "draining": self.draining}
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
