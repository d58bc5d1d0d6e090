"""Stands in for vLLM's ASGI app behind the engine's middleware: its routes, its workers' answers, its failures."""

import asyncio
import json
from typing import Any
from urllib.parse import parse_qs

IDLE = {"state": "idle", "attempt": None, "version": None, "digest": None, "error": None, "bytes": 0, "seconds": 0.0}


class FakeVllm:
    """Workers stage at once and apply at once, unless told otherwise."""

    def __init__(self, workers: int = 1) -> None:
        self.paused = False
        self.calls: list[str] = []
        self.modes: list[str] = []
        """Of the pauses, in order."""
        self.workers: list[dict[str, Any]] = [{"stage": IDLE, "applied": None} for _ in range(workers)]
        self.apply_answers: list[dict[str, Any]] | None = None
        self.in_place: list[bool] = [False] * workers
        """Whether each worker can apply without a pause."""
        self.failing: dict[str, int] = {}
        """Path to the status that it answers."""
        self.hold: dict[str, asyncio.Event] = {}
        """Path or worker method that waits for its event before it answers."""

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            self.calls.append(scope["type"])
            return
        path = scope["path"]
        body = json.loads((await receive()).get("body") or b"null")
        self.calls.append(body["method"] if path == "/collective_rpc" else path)
        if path in self.hold:
            await self.hold[path].wait()
        status = self.failing.get(path, 200)
        answer = await self._answer(path, parse_qs(scope["query_string"].decode()), body) if status == 200 else "broken"
        data = json.dumps(answer).encode()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": data})

    async def _answer(self, path: str, query: dict[str, list[str]], body: Any) -> Any:
        if path == "/pause":
            assert query["clear_cache"] == ["true"]
            self.modes += query["mode"]
            self.paused = True
        elif path == "/resume":
            self.paused = False
        elif path == "/reset_prefix_cache":
            assert query["reset_running_requests"] == ["true"]
        elif path == "/abort_requests":
            return {"status": "aborted", "aborted": 3}
        elif path == "/collective_rpc":
            assert set(body) == {"method", "args"}
            if body["method"] in self.hold:
                await self.hold[body["method"]].wait()
            return {"results": [json.dumps(answer) for answer in self._workers(body["method"], body["args"])]}
        return {"path": path}

    def _workers(self, method: str, args: list[str]) -> list[dict[str, Any]]:
        if method == "echorl_stage":
            wanted = json.loads(args[0])
            staged = {**IDLE, "state": "staged", **{key: wanted[key] for key in ("attempt", "version", "digest")}}
            for worker, in_place in zip(self.workers, self.in_place, strict=True):
                worker["stage"] = {**staged, "in_place": in_place}
        if method == "echorl_abort":
            for worker in self.workers:
                worker["stage"] = IDLE
        if method == "echorl_apply":
            if self.apply_answers is not None:
                return self.apply_answers
            for worker in self.workers:
                worker.update(stage=IDLE, applied={**json.loads(args[0]), "seconds": 0.01})
            return [{"applied": worker["applied"]} for worker in self.workers]
        return self.workers
