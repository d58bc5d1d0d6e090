"""A role's process without its work: speaks the health and state protocol, and ends as a test tells it to.

``fake_role.py ROLE CONFIG``. The test finds it by ``RUN/roles/<role>-<index>/<pid>.json`` and posts to it:
``/exit?code=N``, ``/sick`` (healthz answers 503 once it has answered 200), ``/hold?step=N`` (a rank's memory holds
that step), and to the orchestrator ``/step?n=N``,
``/exit?code=N&told=1`` (its state tells of that as a failure a second before), ``/quarantine`` (its state calls every
engine quarantined) and ``/finish``.
"""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from echorl_core.memory_copies import HEAD_BYTES, slots_from

ROLE, CONFIG = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
RUN = Path(os.environ["FAKE_RUN"])
ATTEMPT = int(os.environ["ECHORL_ATTEMPT"])
RANK = int(os.environ.get("RANK", "0"))
ENDS = {"/control/stop": "stopped", "/finish": "finished"}
"""What ranks are told after these calls; the orchestrator ends with the last of them."""
# Ends on its own soon after the longest test, whatever the supervisor does.
LIFETIME_S = 300


class Part:
    """What the process knows."""

    sick = False
    seen_well = threading.Event()
    engine_state = "serving"
    step = 0
    notice: str | None = None
    failure: dict[str, object] | None = None
    told: set[str] = set()
    revision = 0


def grandchildren() -> list[int]:
    """One in our session, one in a session of its own; both ignore SIGTERM."""
    ready = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"
    code = f"import signal, time; {ready}; time.sleep({LIFETIME_S})"
    found = []
    for own_session in (False, True):
        process = subprocess.Popen(
            [sys.executable, "-c", code], start_new_session=own_session, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        found.append(process.pid)
    return found


def leave(code: int, after_s: float = 0.05) -> None:
    threading.Timer(after_s, os._exit, [code]).start()


def announce_end(fields: dict[str, str]) -> None:
    sys.stdout.write(f"leaving with {fields['code']}\n")
    sys.stdout.flush()
    if "told" in fields:
        Part.failure = {"exit_code": int(fields["code"]), "message": "as told"}
        Part.revision += 1


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        fields = dict(urllib.parse.parse_qsl(query))
        if path in ("/health", "/healthz"):
            sick = Part.sick
            self.reply(503 if sick else 200, {"sick": sick})
            if not sick:
                Part.seen_well.set()
        elif path == "/state":
            deadline = time.monotonic() + float(fields.get("wait", 0))
            while str(Part.revision) == fields.get("since") and time.monotonic() < deadline:
                time.sleep(0.01)
            self.reply(200, state())
        elif path == "/trainer/batch":
            if Part.notice is None:
                self.reply(204, None)
                return
            self.reply(410, {"reason": Part.notice})
            Part.told.add(fields["rank"])
            if len(Part.told) == CONFIG["batch"]["num_ranks"]:
                leave(7 if Part.notice == "stopped" else 0)

    def do_POST(self) -> None:
        path, _, query = self.path.partition("?")
        fields = dict(urllib.parse.parse_qsl(query))
        if path == "/control/stop":
            if self.headers.get("X-EchoRL-Token") != os.environ["ECHORL_ADMIN_TOKEN"]:
                self.reply(403, {})
                return
        elif path == "/step":
            Part.step = int(fields["n"])
            Part.revision += 1
        elif path == "/quarantine":
            Part.engine_state = "quarantined"
            Part.revision += 1
        elif path == "/sick":
            # A process that never was well is one that starts, which may take long.
            Part.seen_well.wait(LIFETIME_S)
            Part.sick = True
        elif path == "/hold":
            (slot, _) = slots_from(os.environ) or ()
            slot.seal(int(fields["step"]), b"", HEAD_BYTES)
        elif path == "/exit":
            announce_end(fields)
        self.reply(200, {})
        # Only then what ends the process: on a busy machine it could be gone before it has answered.
        if path == "/exit":
            leave(int(fields["code"]), 1.0 if "told" in fields else 0.05)
        elif path in ENDS:
            Part.notice = ENDS[path]

    def reply(self, status: int, body: object) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def state() -> dict[str, object]:
    return {
        "run": os.environ["ECHORL_RUN_NAME"],
        "uid": os.environ["ECHORL_RUN_UID"],
        "attempt": ATTEMPT,
        "revision": Part.revision,
        "phase": "Running",
        "step": Part.step,
        "failure": Part.failure,
        "engines": [
            {"name": name, "state": Part.engine_state, "error": "as told"} for name in CONFIG["engines"]["names"]
        ],
    }


def pull() -> None:
    """Ask for batches until the end, as a rank does."""
    while True:
        try:
            with urllib.request.urlopen(f"{CONFIG['orchestrator_url']}/trainer/batch?step=1&rank={RANK}") as response:
                assert response.status == 204
        except urllib.error.HTTPError as error:
            os._exit(0 if error.code == 410 else 1)
        except OSError:
            pass
        time.sleep(0.02)


def main() -> None:
    threading.Timer(LIFETIME_S, os._exit, [99]).start()
    port = CONFIG["metrics_port"] + RANK if ROLE == "trainer" else CONFIG["port"]
    index = RANK if ROLE == "trainer" else int(Path(sys.argv[2]).stem.partition("-")[2] or 0)
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    folder = RUN / "roles" / f"{ROLE}-{index}"
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "pid": os.getpid(),
        "attempt": ATTEMPT,
        "port": port,
        "grandchildren": grandchildren(),
        "environment": dict(os.environ),
    }
    temporary = folder / f".{os.getpid()}"
    temporary.write_text(json.dumps(about))
    temporary.rename(folder / f"{os.getpid()}.json")
    if ROLE == "trainer":
        threading.Thread(target=pull, daemon=True).start()
    server.serve_forever()


main()
