"""A model behind OpenAI's chat completions that calls tools by a script."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Call = tuple[str, dict[str, Any]]


class ScriptedModel:
    """Calls one tool a turn; what it was asked stands in ``asked``."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = list(calls)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        """The next call; 503 when there is none left."""
        self.asked.append(await request.json())
        self.keys.append(request.headers["Authorization"])
        if len(self.asked) > len(self._calls):
            return web.json_response({"error": {"message": "no more"}}, status=503)
        name, arguments = self._calls[len(self.asked) - 1]
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"call_{len(self.asked)}", "type": "function", "function": function}
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})


@asynccontextmanager
async def served(model: ScriptedModel) -> AsyncIterator[tuple[str, int]]:
    """Where the model answers, below ``/s/KEY/v1``."""
    app = web.Application()
    app.router.add_post("/s/{key}/v1/chat/completions", model.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield host, port
    finally:
        await runner.cleanup()
