"""A judge behind an OpenAI-compatible API, by script: it stands where a large model would.

It is asked as ``builtin:debate`` asks with short prompts: the question, its two answers, then a line for each
statement, those for A and for B by turns. Who names its own side, and who quotes its answer, gets a point each; most
points win.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from echorl_orchestrator.environments.builtin.parts.arguing import points

_ANSWERS = re.compile(r"^A(\S+) B(\S+) ", re.MULTILINE)
SIDES = "AB"


def verdict(asked: str) -> str:
    """What the judge says to a prompt: ``=A``, ``=B``, or that it cannot tell."""
    found = _ANSWERS.search(asked)
    if found is None:
        return "I see no question"
    answers, statements = found.groups(), asked[found.end() :].removesuffix("=?").splitlines()
    scores = {
        side: sum(points(said, side, answers) for said in statements[place::2]) for place, side in enumerate(SIDES)
    }
    if scores["A"] == scores["B"]:
        return "neither"
    return f"={max(scores, key=lambda side: scores[side])}"


class _Judge(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": verdict(body["messages"][-1]["content"])}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = json.dumps({"object": "chat.completion", "model": body["model"], "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's word
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


@contextmanager
def serving(port: int) -> Iterator[str]:
    """The base URL of the judge, which serves for as long as a block of code runs; ``port`` 0: any free one."""
    server = _Server(("127.0.0.1", port), _Judge)
    thread = Thread(target=server.serve_forever, name="judge", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
