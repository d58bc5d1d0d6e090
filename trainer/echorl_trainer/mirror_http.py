"""How a pod's copies come to its neighbour and back (``mirror.py``): HTTP with the run's token, between processes 1.

PUT /mirror/copy?rank=R&step=S&restarts=N&at=A   the slot's bytes behind its head, its record from byte A on -> 200
GET /mirror/copy?rank=R&step=S                   -> the same bytes; header X-EchoRL-Record: A
GET /mirror/steps?restarts=N                     -> {rank: [steps]}
"""

import http.client
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from itertools import pairwise

import msgspec

from echorl_core import names
from echorl_core.identity import RunIdentity
from echorl_core.memory_copies import HEAD_BYTES, Slot
from echorl_trainer.mirror import CHUNK_BYTES, Mirrors, Refused, Unreachable, content

CALL_S = 10.0
"""Of each wait for the other side."""
HEADER_RECORD = "X-EchoRL-Record"
COPY, STEPS = "/mirror/copy", "/mirror/steps"


class NextPod:
    """The next pod in the ring, as this one reaches it: a connection a call."""

    def __init__(self, host: str, port: int, identity: RunIdentity, token: str) -> None:
        self._host, self._port = host, port
        self._headers = {**identity.headers(), names.HEADER_TOKEN: token}
        self._instance = ""

    def meet(self, instance: str) -> None:
        """As ``Neighbour``."""
        self._instance = instance

    def put(self, rank: int, slot: Slot, step: int, restarts: int, go_on: Callable[[], bool]) -> None:
        """As ``Neighbour``."""
        size, (at, _) = content(slot, step)
        path = f"{COPY}?rank={rank}&step={step}&restarts={restarts}&at={at}&to={self._instance}"
        with self._connected() as connection:
            try:
                connection.putrequest("PUT", path)
                for name, value in {**self._headers, "Content-Length": str(size)}.items():
                    connection.putheader(name, value)
                connection.endheaders()
                for sent in _sent(connection.sock, slot, size):
                    # Before the last bytes: what the rank has begun to overwrite must not pass for whole.
                    if slot.step != step or not go_on():
                        raise Unreachable(f"step {step} is not to be sent any more, after {sent} bytes")
                _answer(connection.getresponse())
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(f"{type(error).__name__}: {error}") from error

    def steps(self, restarts: int) -> dict[int, set[int]]:
        """As ``Neighbour``."""
        with self._connected() as connection:
            try:
                path = f"{STEPS}?restarts={restarts}&to={self._instance}"
                connection.request("GET", path, None, self._headers)
                return msgspec.json.decode(_answer(connection.getresponse()).read(), type=dict[int, set[int]])
            except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
                raise Unreachable(f"{type(error).__name__}: {error}") from error

    def get(self, rank: int, step: int, into: Slot) -> None:
        """As ``Neighbour``."""
        into.clear()
        with self._connected() as connection:
            try:
                path = f"{COPY}?rank={rank}&step={step}&to={self._instance}"
                connection.request("GET", path, None, self._headers)
                response = _answer(connection.getresponse())
                size = int(response.headers.get("Content-Length", "0"))
                at = int(response.headers.get(HEADER_RECORD, "0"))
                _received(response.read, into, size)
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise Unreachable(f"{type(error).__name__}: {error}") from error
        into.complete(step, (at, HEAD_BYTES + size - at))

    def _connected(self) -> closing[http.client.HTTPConnection]:
        return closing(http.client.HTTPConnection(self._host, self._port, timeout=CALL_S))


def handle(call: BaseHTTPRequestHandler, mirrors: Mirrors, path: str, query: Mapping[str, str]) -> bytes | None:
    """Answer a call of a pod that is known; the body of a 200 that is still to be sent, or None: all is sent.

    Raises:
        KeyError, ValueError: the call is wrong.
        Refused: it comes late, or asks for what is not held.
    """
    if (wanted := query.get("to", mirrors.instance)) != mirrors.instance:
        raise Refused(f"to: found {wanted}, this is pod {mirrors.instance}")
    if (call.command, path) == ("GET", STEPS):
        return msgspec.json.encode({rank: sorted(held) for rank, held in mirrors.steps(int(query["restarts"])).items()})
    rank, step = int(query["rank"]), int(query["step"])
    if call.command == "GET":
        slot = mirrors.slot(rank, step)
        size, (at, _) = content(slot, step)
        call.send_response(200)
        call.send_header("Content-Length", str(size))
        call.send_header(HEADER_RECORD, str(at))
        call.end_headers()
        call.wfile.flush()
        for _ in _sent(call.connection, slot, size):
            if slot.step != step:
                raise ConnectionError("the copy is not held any more")
        return None
    size, at = int(call.headers.get("Content-Length", "0")), int(query["at"])
    if not 0 < size <= mirrors.limit_bytes:
        raise ValueError(f"Content-Length: found {size}, accepted are 1 to {mirrors.limit_bytes}")
    if not HEAD_BYTES <= at < HEAD_BYTES + size:
        raise ValueError(f"at: found {at}, accepted are {HEAD_BYTES} to {HEAD_BYTES + size - 1}")
    with mirrors.receiving(rank, step, int(query["restarts"]), (at, HEAD_BYTES + size - at)) as into:
        _received(call.rfile.read, into, size)
    return b"{}"


def _sent(to: socket.socket, slot: Slot, size: int) -> Iterator[int]:
    """Send a slot's bytes; before each piece but the first, and before the last byte, how many were sent."""
    with os.fdopen(os.dup(slot.file), "rb") as file:
        # The last byte alone: who looks whether the slot still holds its step does so when all others were read.
        cuts = [*range(0, size - 1, CHUNK_BYTES), size - 1, size]
        for begin, end in pairwise(cuts):
            if begin:
                yield begin
            if end > begin:
                to.sendfile(file, HEAD_BYTES + begin, end - begin)


def _received(read: Callable[[int], bytes], slot: Slot | None, size: int) -> None:
    """Put what comes behind a slot's head; None: nowhere.

    Raises:
        ConnectionError: less came.
    """
    done = 0
    while done < size:
        piece = memoryview(read(min(CHUNK_BYTES, size - done)))
        if not piece:
            raise ConnectionError(f"{done} of {size} bytes came")
        while piece and slot is not None:
            written = os.pwrite(slot.file, piece, HEAD_BYTES + done)
            piece, done = piece[written:], done + written
        if slot is None:
            done += len(piece)


def _answer(response: http.client.HTTPResponse) -> http.client.HTTPResponse:
    if response.status != 200:
        raise Unreachable(f"status {response.status}: {response.read(200)!r}")
    return response
