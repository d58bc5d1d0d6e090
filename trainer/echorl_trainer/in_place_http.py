"""How the pods of a gang reach their first one (``in_place.py``): HTTP with the run's token, at ``ECHORL_GANG_PORT``.

    POST /in-place/ends?wait=S                          PodEnds -> Verdict; 204: not decided yet, ask again
    GET  /in-place/failed?restarts=N&first=NAME&wait=S  -> Failed
    POST /in-place/join?pod=I&instance=NAME&wait=S      -> Joined; 204: not all are there yet, ask again

Where neighbours hold copies, each pod answers at its own port too (``mirror_http.py``). A thread a call, and no event
loop: process 1 of a pod waits for its children.
"""

import http.client
import socket
import threading
from collections.abc import Mapping
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from echorl_core import names
from echorl_core.config import TrainerConfig
from echorl_core.identity import RunIdentity
from echorl_core.memory_copies import RankMemory
from echorl_core.run_token import is_same
from echorl_core.wire.in_place import Failed, Joined, PodEnds, Verdict
from echorl_trainer import mirror_http
from echorl_trainer.agreement import Agreement
from echorl_trainer.connections import connected
from echorl_trainer.in_place import FirstPod, InPlace, Mirror
from echorl_trainer.mirror import Mirroring, Mirrors, Refused, Unreachable

IN_PLACE = "/in-place/"
ENDS, FAILED, JOIN = f"{IN_PLACE}ends", f"{IN_PLACE}failed", f"{IN_PLACE}join"
MAX_BODY_BYTES = 1 << 20
MAX_WAIT_S = 60.0
CALL_S = 10.0
"""Of a call, beside what it may wait for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = CALL_S
    server: "_Server"

    def do_GET(self) -> None:
        self._handle(FAILED, mirror_http.COPY, mirror_http.STEPS)

    def do_POST(self) -> None:
        self._handle(ENDS, JOIN)

    def do_PUT(self) -> None:
        self._handle(mirror_http.COPY)

    def _handle(self, *paths: str) -> None:
        self.close_connection = True
        parts = urlsplit(self.path)
        given = {name: self.headers.get(name, "") for name in (names.HEADER_RUN, names.HEADER_ATTEMPT)}
        if (problem := self.server.identity.refusal(given)) is not None:
            self._answer(409, {"error": problem})
        elif not is_same(self.headers.get(names.HEADER_TOKEN), self.server.token):
            self._answer(403, {"error": f"{names.HEADER_TOKEN} is missing or wrong"})
        elif parts.path not in paths or self._whose(parts.path) is None:
            self._answer(404, {"error": f"no {self.command} {parts.path[:100]}"})
        else:
            try:
                self._decide(parts.path, {key: values[0] for key, values in parse_qs(parts.query).items()})
            except (KeyError, ValueError, OverflowError, msgspec.DecodeError) as error:
                self._answer(400, {"error": f"{type(error).__name__}: {error}"})
            except (Refused, Unreachable) as error:
                self._answer(409, {"error": str(error)})

    def _whose(self, path: str) -> Agreement | Mirrors | None:
        return self.server.agreement if path.startswith(IN_PLACE) else self.server.mirrors

    def _decide(self, path: str, query: Mapping[str, str]) -> None:
        whose = self._whose(path)
        if isinstance(whose, Mirrors):
            content = mirror_http.handle(self, whose, path, query)
            if content is not None:
                self._send(200, content)
        elif whose is not None:
            self._agree(whose, path, query)

    def _agree(self, agreement: Agreement, path: str, query: Mapping[str, str]) -> None:
        wait_s = min(max(float(query["wait"]), 0.0), MAX_WAIT_S)
        if path == JOIN:
            joined = agreement.join(self._other(int(query["pod"])), query["instance"], wait_s)
            self._answer(204 if joined is None else 200, joined)
            return
        if path == FAILED:
            failed = agreement.has_failed(int(query["restarts"]), query.get("first", ""), wait_s)
            self._answer(200, Failed(failed=failed))
            return
        size = int(self.headers.get("Content-Length", "0"))
        if not 0 < size <= MAX_BODY_BYTES:
            raise ValueError(f"Content-Length: found {size}, accepted are 1 to {MAX_BODY_BYTES}")
        ends = msgspec.json.decode(self.rfile.read(size), type=PodEnds)
        self._other(ends.pod)
        verdict = agreement.report(ends, wait_s)
        self._answer(204 if verdict is None else 200, verdict)
        if verdict is not None:
            agreement.answered(ends.pod)

    def _other(self, pod: int) -> int:
        if not 0 < pod < self.server.pods:
            raise ValueError(f"pod: found {pod}, accepted are 1 to {self.server.pods - 1}")
        return pod

    def _answer(self, status: int, body: msgspec.Struct | dict[str, str] | None) -> None:
        self._send(status, b"" if body is None else msgspec.json.encode(body))

    def _send(self, status: int, content: bytes) -> None:
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
        self,
        host: str,
        port: int,
        agreement: Agreement | None,
        mirrors: Mirrors | None,
        *,
        pods: int,
        identity: RunIdentity,
        token: str,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.agreement, self.mirrors = agreement, mirrors
        self.pods, self.identity, self.token = pods, identity, token
        super().__init__((host, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that hung up asks again."""


def serve(
    agreement: Agreement | None,
    host: str,
    port: int,
    *,
    pods: int,
    identity: RunIdentity,
    token: str,
    mirrors: Mirrors | None = None,
) -> int:
    """Answer the gang's other pods at ``host:port`` (0: any free port) until the process ends; the port.

    ``agreement``: of the first pod; None elsewhere. ``mirrors``: where this pod holds copies for another one.

    Raises:
        OSError: the address cannot be listened on.
    """
    server = _Server(host, port, agreement, mirrors, pods=pods, identity=identity, token=token)
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
        body = self._call("POST", f"{ENDS}?wait={wait_s:g}", msgspec.json.encode(ends), wait_s)
        return msgspec.json.decode(body, type=Verdict) if body else None

    def has_failed(self, restarts: int, first: str, wait_s: float) -> bool:
        """As ``FirstPod``.

        Raises:
            Unreachable: there was no usable answer.
        """
        body = self._call("GET", f"{FAILED}?restarts={restarts}&first={first}&wait={wait_s:g}", None, wait_s)
        return msgspec.json.decode(body, type=Failed).failed

    def join(self, pod: int, instance: str, wait_s: float) -> Joined | None:
        """As ``FirstPod``.

        Raises:
            Unreachable: there was no usable answer.
        """
        body = self._call("POST", f"{JOIN}?pod={pod}&instance={instance}&wait={wait_s:g}", None, wait_s)
        return msgspec.json.decode(body, type=Joined) if body else None

    def close(self) -> None:
        """Nobody waits for this pod."""

    def _call(self, method: str, path: str, body: bytes | None, wait_s: float) -> bytes:
        try:
            with closing(connected(self._host, self._port, wait_s + CALL_S)) as connection:
                connection.request(method, path, body, self._headers)
                response = connection.getresponse()
                answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
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
    mirrored = found.memory.mirror and pods > 1
    memories = {rank: RankMemory(rank, mirrored=mirrored) for rank in ranks}
    if pods == 1:
        return InPlace(pod, memories, Agreement(found.memory, pods))
    port, token = environ.get(names.ENV_GANG_PORT, ""), environ.get(names.ENV_ADMIN_TOKEN, "")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{names.ENV_GANG_PORT}: found {port!r}, accepted is a port")
    if not token:
        raise ValueError(f"environment variables are missing: {names.ENV_ADMIN_TOKEN}")
    first: FirstPod = RemoteFirstPod(environ["MASTER_ADDR"], int(port), identity, token)
    mirrors, mirror, own_port = None, None, int(port)
    if mirrored:
        members = _members(environ, pods)
        own_port = members[pod][1]
        before, after = (pod - 1) % pods, (pod + 1) % pods
        mirrors = Mirrors(range(before * len(ranks), (before + 1) * len(ranks)), found.memory.limit_bytes)
        neighbour = mirror_http.NextPod(*members[after], identity, token)
        mirror = Mirror(
            pods=pods,
            held=mirrors,
            own=Mirroring(memories, neighbour),
            within_s=found.memory.replaced_within_s,
            join_s=found.step_timeout_s,
        )
    instance = "" if mirrors is None else mirrors.instance
    agreement = Agreement(found.memory, pods, instance=instance) if pod == 0 else None
    if agreement is not None or mirrors is not None:
        serve(agreement, found.publish_host, own_port, pods=pods, identity=identity, token=token, mirrors=mirrors)
    return InPlace(pod, memories, first if agreement is None else agreement, mirror)


def _members(environ: Mapping[str, str], pods: int) -> list[tuple[str, int]]:
    """Host and port of each pod of the gang.

    Raises:
        ValueError: the variable is missing or wrong.
    """
    found = environ.get(names.ENV_GANG_MEMBERS, "")
    parts = (one.rpartition(":") for one in found.split(","))
    members = [(host, int(port)) for host, _, port in parts if host and port.isdigit()]
    if len(members) != pods:
        raise ValueError(f"{names.ENV_GANG_MEMBERS}: found {found!r}, accepted is host:port of each of {pods} pods")
    return members
