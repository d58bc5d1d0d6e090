"""An engine's gate, driven as uvicorn drives it, in front of a stand-in for vLLM's own routes."""

import asyncio
import json
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from echorl_testing.engines.fake_vllm import FakeVllm
from echorl_vllm.middleware import EngineGate

DIGEST = "d" * 64
CHAT = "/v1/chat/completions"


Answer = tuple[int, Any, dict[str, str]]
"""Status, decoded body and headers."""


class Engine:
    """A gate, what it guards, and how often it would have ended the process."""

    def __init__(self, workers: int = 1, token: str = "secret") -> None:
        self.vllm = FakeVllm(workers)
        self.ended = 0
        self.left: list[str] = []
        """Last words after a notice."""
        self.gate = EngineGate(self.vllm, token=token, run_uid="run-1", end_engine=self._end, leave=self.left.append)

    def _end(self) -> None:
        self.ended += 1

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str | None] | None = None,
        *,
        token: str | None = "secret",
        query: str = "",
    ) -> Answer:
        """One request; headers that are None are left out."""
        sent: list[MutableMapping[str, Any]] = []
        given = {"X-EchoRL-Token": token, **(headers or {})}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items() if value is not None],
            "app": object(),
        }
        content = body if isinstance(body, bytes) else json.dumps(body).encode()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await self.gate(scope, receive, send)
        head = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], json.loads(b"".join(part["body"] for part in sent[1:])), head

    async def stage(self, version: int = 1, attempt: int = 1) -> Answer:
        """Stage a version."""
        body = {"attempt": attempt, "version": version, "url": "http://x/m", "digest": DIGEST, "deadline_s": 5}
        return await self.ask("POST", "/echorl/stage", body)

    async def pause(self, lease_s: float = 30.0) -> Answer:
        """Pause generation."""
        return await self.ask("POST", "/echorl/pause", {"lease_s": lease_s})

    async def apply(self, version: int = 1, attempt: int = 1) -> Answer:
        """Apply what was staged."""
        return await self.ask("POST", "/echorl/apply", {"attempt": attempt, "version": version, "digest": DIGEST})

    async def resume(self) -> Answer:
        """Go on generating."""
        return await self.ask("POST", "/echorl/resume")

    async def identity(self) -> Any:
        """What the engine says of itself."""
        return (await self.ask("GET", "/echorl/identity"))[1]

    async def update(self, version: int = 1, attempt: int = 1) -> list[Answer]:
        """A whole update that succeeds; what each of its calls answered."""
        answers = [await self.stage(version, attempt), await self.pause(), await self.apply(version, attempt)]
        answers.append(await self.resume())
        assert [status for status, *_ in answers] == [200] * 4
        return answers


async def until(condition: Callable[[], object], deadline_s: float = 60.0) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
