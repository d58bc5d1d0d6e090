"""The world of a local run whose roles are scripts: who dies when and how, what the orchestrator says, how far it is.

It answers for the orchestrator and the engines at their ports, as long as their processes live.
"""

import json
import random
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from echorl_testing.local.scripted_roles import Launch, launches

CODES = [1, 1, 1, 42, 6, -9, -15, 137, 0, 7, 2, 3, 4, 5, 8]
"""What a process may end with; a crash more often than not."""
_STEP_S = 0.05
_POLL_S = 0.01


class RunWorld:
    """One run's, over several supervisors."""

    def __init__(self, folder: Path, ports: list[int], chance: random.Random, *, max_steps: int) -> None:
        """``ports``: the orchestrator's, then those of the engines."""
        self.folder, self._ports, self._chance = folder, ports, chance
        self.max_steps = max_steps
        self.launches: list[Launch] = []
        self.violations: list[str] = []
        self.step = 0
        self.stop_asked = False
        self.hears_stop = chance.random() < 0.8
        """Whether the orchestrator does as it is asked."""
        self.risk = chance.choice([0.0, 0.1, 0.3, 0.6])
        """Of each process to end as it should not."""
        self.cursed = chance.choice([None, None, None, "trainer-0", "orchestrator-0", "inference-0"])
        """A role that always crashes; no step is ever trained then."""
        self._known: set[Path] = set()
        self._fates: list[tuple[float, Launch, int | None]] = []
        self._over = threading.Event()
        folder.mkdir()

    def __enter__(self) -> "RunWorld":
        """Begin to answer."""
        self._servers = [self._server(index, port) for index, port in enumerate(self._ports)]
        self._threads = [threading.Thread(target=one.serve_forever, args=(0.05,)) for one in self._servers]
        self._threads.append(threading.Thread(target=self._live))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Be over."""
        self._over.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join()

    def newest(self, name: str) -> Launch | None:
        """The process of a role that came last."""
        return next((one for one in reversed(self.launches) if one.name == name), None)

    def pids(self) -> list[int]:
        """Every process that there was, with those that they started."""
        return [pid for one in self.launches for pid in (one.pid, one.kid) if pid]

    def state(self) -> dict[str, Any] | None:
        """What the orchestrator says of the run; None while there is none."""
        one = self.newest("orchestrator-0")
        if one is None or not one.alive:
            return None
        return {"uid": one.uid, "attempt": one.attempt, "phase": "Running", "step": self.step, "revision": self.step}

    def _live(self) -> None:
        stepped = time.monotonic()
        while not self._over.wait(_POLL_S):
            for one in launches(self.folder, self._known):
                self._begun(one)
            now = time.monotonic()
            due = [fate for fate in self._fates if fate[0] <= now]
            self._fates = [fate for fate in self._fates if fate[0] > now]
            for _, one, code in due:
                if code is None:
                    one.sick = True
                else:
                    one.end(code)
            if now - stepped > _STEP_S and self.cursed is None and self.state() is not None:
                stepped, self.step = now, min(self.step + 1, self.max_steps)
            self._end_work()

    def _begun(self, one: Launch) -> None:
        before = self.newest(one.name)
        if before is not None and before.alive:
            self.violations.append(f"{one.name}: process {one.pid} began while {before.pid} lived")
        if before is not None and one.attempt < before.attempt:
            self.violations.append(f"{one.name}: attempt {one.attempt} after {before.attempt}")
        self.launches.append(one)
        if one.name == self.cursed:
            self._fates.append((time.monotonic() + self._chance.uniform(0.0, 0.2), one, 1))
        elif self._chance.random() < self.risk:
            is_rank = one.name.startswith("trainer")
            code = self._chance.choice([*CODES, *([] if is_rank else [None])])
            self._fates.append((time.monotonic() + self._chance.uniform(0.0, 0.5), one, code))

    def _end_work(self) -> None:
        stopped = self.stop_asked and self.hears_stop
        if not stopped and self.step < self.max_steps:
            return
        for one in self.launches[-16:]:
            if one.alive and not one.name.startswith("inference"):
                one.end(7 if stopped and one.name.startswith("orchestrator") else 0)

    def _server(self, index: int, port: int) -> ThreadingHTTPServer:
        world = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                one = world.newest("orchestrator-0" if index == 0 else f"inference-{index - 1}")
                path, _, query = self.path.partition("?")
                if one is None or not one.alive or one.sick:
                    self.reply(503, {})
                elif path == "/state":
                    since = dict(urllib.parse.parse_qsl(query)).get("since")
                    deadline = time.monotonic() + 0.2
                    while str(world.step) == since and time.monotonic() < deadline:
                        time.sleep(_POLL_S)
                    state = world.state()
                    self.reply(503 if state is None else 200, state or {})
                else:
                    self.reply(200, {})

            def do_POST(self) -> None:
                world.stop_asked = True
                self.reply(200, {})

            def reply(self, status: int, body: object) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
