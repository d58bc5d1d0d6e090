"""How the pods of a gang reach their first one (``in_place.py``): HTTP with the run's token, at ``ECHORL_GANG_PORT``.

    POST /in-place/ends?wait=S               PodEnds -> Verdict; 204: not decided yet, ask again
    GET  /in-place/failed?restarts=N&wait=S  -> Failed

A thread a call, and no event loop: process 1 of a pod waits for its children.
"""

import http.client
import socket
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from echorl_core import names
from echorl_core.config import TrainerConfig
from echorl_core.identity import RunIdentity
from echorl_core.memory_copies import RankMemory
from echorl_core.run_token import is_same
from echorl_core.wire.in_place import Failed, PodEnds, Verdict
from echorl_trainer.in_place import Agreement, FirstPod, InPlace, Unreachable

MAX_BODY_BYTES = 1 << 20
MAX_WAIT_S = 60.0
CALL_S = 10.0
"""Of a call, beside what it may wait for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = CALL_S
    server: "_Server"

    def do_GET(self) -> None:
        self._handle("/in-place/failed")

    def do_POST(self) -> None:
        self._handle("/in-place/ends")

    def _handle(self, path: str) -> None:
        self.close_connection = True
        parts = urlsplit(self.path)
        given = {name: self.headers.get(name, "") for name in (names.HEADER_RUN, names.HEADER_ATTEMPT)}
        if (problem := self.server.identity.refusal(given)) is not None:
            self._answer(409, {"error": problem})
        elif not is_same(self.headers.get(names.HEADER_TOKEN), self.server.token):
            self._answer(403, {"error": f"{names.HEADER_TOKEN} is missing or wrong"})
        elif parts.path != path:
            self._answer(404, {"error": f"no {self.command} {parts.path[:100]}"})
        else:
            try:
                self._decide({key: float(values[0]) for key, values in parse_qs(parts.query).items()})
            except (KeyError, ValueError, OverflowError, msgspec.DecodeError) as error:
                self._answer(400, {"error": f"{type(error).__name__}: {error}"})

    def _decide(self, query: Mapping[str, float]) -> None:
        agreement, wait_s = self.server.agreement, min(max(query["wait"], 0.0), MAX_WAIT_S)
        if self.command == "GET":
            self._answer(200, Failed(failed=agreement.has_failed(int(query["restarts"]), wait_s)))
            return
        size = int(self.headers.get("Content-Length", "0"))
        if not 0 < size <= MAX_BODY_BYTES:
            raise ValueError(f"Content-Length: found {size}, accepted are 1 to {MAX_BODY_BYTES}")
        ends = msgspec.json.decode(self.rfile.read(size), type=PodEnds)
        if not 0 < ends.pod < self.server.pods:
            raise ValueError(f"pod: found {ends.pod}, accepted are 1 to {self.server.pods - 1}")
        verdict = agreement.report(ends, wait_s)
        self._answer(204 if verdict is None else 200, verdict)
        if verdict is not None:
            agreement.answered(ends.pod)

    def _answer(self, status: int, body: msgspec.Struct | dict[str, str] | None) -> None:
        content = b"" if body is None else msgspec.json.encode(body)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing: what is decided is logged where it is acted on."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self, host: str, port: int, agreement: Agreement, *, pods: int, identity: RunIdentity, token: str
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.agreement, self.pods, self.identity, self.token = agreement, pods, identity, token
        super().__init__((host, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that hung up asks again."""


def serve(agreement: Agreement, host: str, port: int, *, pods: int, identity: RunIdentity, token: str) -> int:
    """Answer the gang's other pods at ``host:port`` (0: any free port) until the process ends; the port.

    Raises:
        OSError: the address cannot be listened on.
    """
    server = _Server(host, port, agreement, pods=pods, identity=identity, token=token)
    threading.Thread(target=server.serve_forever, name="agreement", daemon=True).start()
    return int(server.server_address[1])


class RemoteFirstPod:
    """The first pod, as the others reach it. Thread-safe: every call has a connection of its own."""

    def __init__(self, host: str, port: int, identity: RunIdentity, token: str) -> None:
        self._host, self._port = host, port
        self._headers = {**identity.headers(), names.HEADER_TOKEN: token}

    def report(self, ends: PodEnds, wait_s: float) -> Verdict | None:
        """As ``FirstPod``.

        Raises:
            Unreachable: there was no usable answer.
        """
        body = self._call("POST", f"/in-place/ends?wait={wait_s:g}", msgspec.json.encode(ends), wait_s)
        return msgspec.json.decode(body, type=Verdict) if body else None

    def has_failed(self, restarts: int, wait_s: float) -> bool:
        """As ``FirstPod``.

        Raises:
            Unreachable: there was no usable answer.
        """
        body = self._call("GET", f"/in-place/failed?restarts={restarts}&wait={wait_s:g}", None, wait_s)
        return msgspec.json.decode(body, type=Failed).failed

    def close(self) -> None:
        """Nobody waits for this pod."""

    def _call(self, method: str, path: str, body: bytes | None, wait_s: float) -> bytes:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=wait_s + CALL_S)
        try:
            connection.request(method, path, body, self._headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if response.status not in (200, 204):
            raise Unreachable(f"status {response.status}: {answer[:200]!r}")
        return answer


def restarts_in_place(
    config: Path, environ: Mapping[str, str], identity: RunIdentity, *, pods: int, pod: int, ranks: range
) -> InPlace | None:
    """How the ranks of a pod start again in place; None: ``checkpoint.memory`` is not set.

    Raises:
        ValueError: a variable that several pods need is missing or wrong.
        OSError: the first pod cannot listen for the others.
    """
    try:
        found = TrainerConfig.model_validate_json(config.read_text())
    except (OSError, ValueError):
        return None  # what is wrong with it the ranks say
    if found.memory is None:
        return None
    memories = {rank: RankMemory(rank) for rank in ranks}
    if pods == 1:
        return InPlace(pod, memories, Agreement(found.memory, pods))
    port, token = environ.get(names.ENV_GANG_PORT, ""), environ.get(names.ENV_ADMIN_TOKEN, "")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{names.ENV_GANG_PORT}: found {port!r}, accepted is a port")
    if not token:
        raise ValueError(f"environment variables are missing: {names.ENV_ADMIN_TOKEN}")
    first: FirstPod = RemoteFirstPod(environ["MASTER_ADDR"], int(port), identity, token)
    if pod == 0:
        first = agreement = Agreement(found.memory, pods)
        serve(agreement, found.publish_host, int(port), pods=pods, identity=identity, token=token)
    return InPlace(pod, memories, first)
