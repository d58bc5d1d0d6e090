import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from echorl_core.config import SamplingConfig
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.gateway import dialects
from echorl_orchestrator.gateway.http import GatewayApi, found_dialects
from echorl_orchestrator.gateway.sessions import Sessions
from echorl_orchestrator.gateway.turns import SessionSpec
from echorl_testing.orchestrator.scripted_policy import ScriptedPolicy, write_byte_tokenizer

PLAIN = """
from echorl_orchestrator.gateway.dialect import TurnRequest


class Plain:
    path = "/plain"
    heartbeat = ": computing\\n\\n"
    in_stream = frozenset()

    def read(self, body, spec):
        return TurnRequest([{"role": "user", "content": body["say"]}], [], spec.sampling, stream=body.get("stream"))

    def answer(self, session, turn):
        return {"said": turn.message["content"]}

    def events(self, session, turn, body):
        return f"data: {turn.message['content']}"

    def refusal(self, refusal):
        return {"refused": refusal.reason}

    def failure(self, refusal):
        return f"data: {refusal.message}"


DIALECT = Plain()
"""


def test_every_dialect_has_a_path_of_its_own() -> None:
    paths = [dialect.path for dialect in found_dialects()]
    assert "/v1/chat/completions" in paths
    assert len(set(paths)) == len(paths)


async def test_a_module_beside_the_others_is_a_dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    monkeypatch.setattr(dialects, "__path__", [*dialects.__path__, str(tmp_path)])
    tokenizer = TextTokenizer(write_byte_tokenizer(tmp_path), name="bytes")
    sessions, app = Sessions(), web.Application()
    policy = ScriptedPolicy(tokenizer, lambda text: "fern<|im_end|>")
    sessions.open(SessionSpec("k", "e", CompactCodec(tokenizer), policy, SamplingConfig(), max_model_len=512))
    try:
        GatewayApi(sessions, lambda error: None).routes(app)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        async with aiohttp.ClientSession(f"http://{host}:{port}") as client:
            for body, said in (
                ({"say": "port?"}, '{"said": "fern"}'),
                ({"say": "port?", "stream": True}, "data: fern"),
            ):
                async with client.post("/s/k/plain", json=body) as answer:
                    assert (answer.status, await answer.text()) == (200, said)
            async with client.post("/s/other/plain", json={"say": "port?"}) as answer:
                assert (answer.status, await answer.json()) == (404, {"refused": "session_not_found"})
        await runner.cleanup()
    finally:
        sys.modules.pop(f"{dialects.__name__}.plain", None)
