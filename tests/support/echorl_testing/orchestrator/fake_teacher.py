"""A teacher behind an OpenAI-compatible URL: says what a script says, and judges tokens by a rule."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from echorl_core.config import TeacherConfig

Messages = list[dict[str, Any]]


def _silent(messages: Messages) -> dict[str, Any]:
    return {"content": "ok"}


@dataclass
class FakeTeacher:
    """What it does; tests change it while it serves."""

    decode: Callable[[int], str] = chr
    """Its tokenizer: the text of one id."""
    says: Callable[[Messages], dict[str, Any]] = _silent
    """The next message of a conversation: content, and tool_calls in OpenAI's form."""
    finish_reason: str = "stop"
    logprob: Callable[[int, int], float | None] = lambda place, token: -1.0 - place / 100 - token / 1000
    """Of a token at a place of the prompt."""
    with_logprobs: bool = True
    vocabulary: int = 10_000
    key: str | None = None
    """Asked for as a bearer token."""
    failures: list[int] = field(default_factory=list)
    """Statuses of the next answers."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def config(self, **changes: Any) -> TeacherConfig:
        """How the orchestrator knows it."""
        fields = {"busy_deadline_s": 60.0, "start_deadline_s": 60.0, "request_deadline_s": 60.0, **changes}
        return TeacherConfig(url=self.url, model="big", **fields)

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
            return _error(401, f"Incorrect API key provided: {sent}")
        if self.failures:
            return _error(self.failures.pop(0), "not now")
        if body.get("model") != "big":
            return _error(404, f"The model `{body.get('model')}` does not exist.")
        found = self._chat(body) if request.path.endswith("/chat/completions") else self._completion(body)
        return found if isinstance(found, web.Response) else web.json_response(found)

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        message = {"role": "assistant", "content": None, **self.says(body["messages"])}
        reason = "tool_calls" if message.get("tool_calls") else self.finish_reason
        return {
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {"completion_tokens": 7},
        }

    def _completion(self, body: dict[str, Any]) -> dict[str, Any] | web.Response:
        prompt = body["prompt"]
        if max(prompt) >= self.vocabulary:
            return _error(400, f"Token id {max(prompt)} is out of vocabulary")
        choice: dict[str, Any] = {"index": 0, "text": "", "finish_reason": "length"}
        if self.with_logprobs:
            choice["prompt_logprobs"] = [None] + [
                {str(token): {"logprob": self.logprob(place, token), "rank": 1, "decoded_token": self.decode(token)}}
                for place, token in enumerate(prompt[1:], start=1)
            ]
        return {"choices": [choice]}


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


@asynccontextmanager
async def teaching(teacher: FakeTeacher | None = None) -> AsyncIterator[FakeTeacher]:
    """A teacher that serves on a port of its own."""
    teacher = teacher or FakeTeacher()
    app = web.Application()
    for path in ("/v1/chat/completions", "/v1/completions"):
        app.router.add_post(path, teacher._answer)
    async with TestServer(app) as server:
        teacher.url = str(server.make_url("/v1"))
        yield teacher
        await asyncio.sleep(0)
