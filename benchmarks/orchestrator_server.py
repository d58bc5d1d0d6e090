"""A fake engine for ``benchmarks.orchestrator``: canned answers, given faster than any client asks for them.

``/inference/v1/generate`` answers token ids with logprobs, streamed where that is asked for;
``/v1/chat/completions`` answers as many tokens of text. With ``--asked`` a turn takes as many milliseconds as it is
asked for tokens, and the first event of its stream comes after half of them.
"""

import argparse
import asyncio
import json
from typing import Any

from echorl_core import names
from echorl_orchestrator.engines.bodies import STREAM_INTERVAL

TOKENS = 64
"""Of every answer."""
BOOT = "bench"


def _stream(entries: list[dict[str, Any]]) -> bytes:
    """The same answer as vLLM streams it: one token, then ``STREAM_INTERVAL`` to an event; chunked."""
    body, begin = b"", 0
    while begin < len(entries):
        part = entries[begin : begin + (STREAM_INTERVAL if begin else 1)]
        begin += len(part)
        reason = "stop" if begin == len(entries) else None
        choice = {"index": 0, "logprobs": {"content": part}, "finish_reason": reason, "stop_reason": None}
        choice |= {"token_ids": [one["token_id"] for one in part], "weight_versions": None}
        event = b"data: " + json.dumps({"request_id": "r", "usage": None, "choices": [choice]}).encode() + b"\n\n"
        body += b"%x\r\n%s\r\n" % (len(event), event)
    return body + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def _answers() -> dict[bytes, bytes]:
    ids = [ord("a") + number % 26 for number in range(TOKENS)]
    of_ids = [{"token_id": one, "logprob": -0.5 - one / 7919, "rank": 1, "top_logprobs": []} for one in ids]
    generated = {
        "request_id": "r",
        "choices": [{"index": 0, "logprobs": {"content": of_ids}, "finish_reason": "stop", "token_ids": ids}],
    }
    word = {"token": "abcd", "bytes": [97, 98, 99, 100], "top_logprobs": []}
    words = [{**word, "logprob": -0.5 - one / 7919} for one in ids]
    message = {"role": "assistant", "content": "abcd" * TOKENS}
    usage = {"prompt_tokens": 1, "completion_tokens": TOKENS, "total_tokens": TOKENS + 1}
    common = {"id": "c", "created": 1, "model": "policy", "usage": usage}
    choice = {"index": 0, "message": message, "logprobs": {"content": words}, "finish_reason": "stop"}
    chat = {**common, "object": "chat.completion", "choices": [choice]}
    return {
        b"/inference/v1/generate": json.dumps(generated).encode(),
        b"stream": _stream(of_ids),
        b"/v1/chat/completions": json.dumps(chat).encode(),
    }


class Engine(asyncio.Protocol):
    """One connection: reads whole requests, answers each after ``delay_s``."""

    answers: dict[bytes, bytes]
    delay_s: float
    asked: bool

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a stream server
        self._transport, self._buffer = transport, bytearray()

    def data_received(self, data: bytes) -> None:
        """Answer every request that is whole."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end])
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(self._buffer) < end + 4 + length:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            answer = self.answers[b"stream" if b'"stream":true' in body else head.split(b" ", 2)[1]]
            if self.asked:
                self._take_time(answer, int(body.partition(b'"max_tokens":')[2].partition(b",")[0]) / 1e3)
            elif self.delay_s:
                asyncio.get_running_loop().call_later(self.delay_s, self._transport.write, answer)
            else:
                self._transport.write(answer)

    def _take_time(self, answer: bytes, seconds: float) -> None:
        loop, first = asyncio.get_running_loop(), answer.index(b"\n\n\r\n") + 4
        loop.call_later(seconds / 2, self._transport.write, answer[:first])
        loop.call_later(seconds, self._transport.write, answer[first:])


async def _serve(delay_s: float, *, asked: bool) -> None:
    Engine.delay_s, Engine.asked = delay_s, asked
    stamps = f"{names.HEADER_BOOT}: {BOOT}\r\n{names.HEADER_VERSION}: 3\r\n"
    of_json = "content-type: application/json\r\ncontent-length: {}\r\n\r\n"
    of_events = "content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    Engine.answers = {
        path: f"HTTP/1.1 200 OK\r\n{stamps}{of_events if path == b'stream' else of_json.format(len(body))}".encode()
        + body
        for path, body in _answers().items()
    }
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds until an answer")
    parser.add_argument(
        "--asked", action="store_true", help="a turn takes as many milliseconds as tokens are asked for"
    )
    options = parser.parse_args()
    asyncio.run(_serve(options.delay, asked=options.asked))
