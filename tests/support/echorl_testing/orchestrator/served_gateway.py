"""A gateway on a real socket with a scripted policy behind it, for clients of every dialect."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from echorl_core.config import SamplingConfig
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.gateway.http import GatewayApi
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.sessions import Sessions
from echorl_orchestrator.gateway.turns import SessionSpec
from echorl_testing.orchestrator.scripted_policy import ScriptedPolicy, write_byte_tokenizer

PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"pattern": {"type": "string"}}}
"""Of the tool ``grep``."""
GREP_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "grep", "parameters": PARAMETERS}}
GREP = "look <tool_call>grep port</tool_call><|im_end|>"
_CALL = '{"name": "grep", "arguments": {"pattern": "port"}}'
THINKING_CALL = f"<think>\nhm\n</think>\n\n<tool_call>\n{_CALL}\n</tool_call><|im_end|>"
"""As the codec ``qwen3`` reads it."""


class ServedGateway:
    """A gateway with one open session ``k``. The policy says ``reply``, and ``done`` where a tool has answered."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.reply = GREP
        self.policy = ScriptedPolicy(
            tokenizer, lambda text: "done<|im_end|>" if "tool_response" in text else self.reply
        )
        self.tokenizer = tokenizer
        self.sessions = Sessions()
        self.bugs: list[BaseException] = []
        self.session = self.open("k")
        app = web.Application()
        GatewayApi(self.sessions, self.bugs.append).routes(app)
        # As in production, a handler is not cancelled when its client goes away (aiohttp's TestServer would).
        self.runner = web.AppRunner(app, handler_cancellation=False)

    def url(self, path: str) -> str:
        """Where ``path`` is served."""
        host, port = self.runner.addresses[0]
        return f"http://{host}:{port}{path}"

    def open(self, key: str, **changes: Any) -> GatewaySession:
        """Open another session."""
        spec: dict[str, Any] = {
            "codec": CompactCodec(self.tokenizer),
            "generator": self.policy,
            "sampling": SamplingConfig(max_completion_tokens=64),
            "max_model_len": 512,
            **changes,
        }
        return self.sessions.open(SessionSpec(key, "e", **spec))


@asynccontextmanager
async def served_gateway(folder: Path) -> AsyncIterator[ServedGateway]:
    """Serve on a free port; ``folder`` gets the tokenizer."""
    served = ServedGateway(TextTokenizer(write_byte_tokenizer(folder), name="bytes"))
    await served.runner.setup()
    try:
        await web.TCPSite(served.runner, "127.0.0.1", 0).start()
        yield served
    finally:
        await served.runner.cleanup()
