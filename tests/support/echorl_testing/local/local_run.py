"""Real runs for tests: ``echorl run`` with real engines, orchestrator and trainer ranks, seen from outside.

Nothing outlives a test: every process of a run inherits a variable with a value of its own, and is found by it.
"""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from echorl_cli.local.proctable import Stat
from echorl_core.attempts import Prepared, prepared_attempts
from echorl_core.rundir import RunDirectory
from echorl_testing import campaign
from echorl_testing.local.run_processes import MARK, marked, noted, roles_of
from echorl_trainer.seeded import Family, SeededShape, write_seeded_model

T = TypeVar("T")

SHAPE = SeededShape(hidden_size=64, intermediate_size=128, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=32)
"""Steps and updates take milliseconds."""
SUPPORT = Path(__file__).parents[2]
_LONGER = [
    "adapters",
    "an adapter",
    "a judged debate",
    "a real teacher",
    "consultancy",
    "debate against the base",
    "debate of copies",
    "preflight",
    "quickstart",
    "quickstart-rl-only",
    "replayed routers",
    "rlvr",
    "shared packs",
]
_POLL_S = 0.05


def eventually(question: Callable[[], T | None], what: str, deadline_s: float) -> T:
    """The first true answer.

    Raises:
        TimeoutError: there is none within ``deadline_s``.
    """
    end = time.monotonic() + deadline_s
    while not (answer := question()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {deadline_s:.0f} s: {what}")
        time.sleep(_POLL_S)
    return answer


def longer_run(case: str) -> pytest.MarkDecorator:
    """Mark of a whole run of its own kind; every run of the tests makes one of these."""
    assert case in _LONGER
    return campaign.campaign_mark("longer runs", _LONGER, 1, case)


def write_model(folder: Path, family: Family = "qwen3") -> Path:
    """The model of these runs."""
    write_seeded_model(folder, SHAPE, seed=5, family=family)
    return folder


def manifest(model: Path, **spec: Any) -> dict[str, Any]:
    """A run whose batches have something to train for RL and for ECHO; ``spec`` replaces blocks."""
    return {
        "apiVersion": "echorl.dev/v1alpha1",
        "kind": "EchoRLRun",
        "metadata": {"name": "faults"},
        "spec": {
            "model": {"name": str(model), "renderer": "compact", "maxModelLen": 256, "dtype": "float32"},
            "maxSteps": 8,
            "seed": 1,
            "algorithm": {"groupSize": 4, "batchSize": 16, "maxStaleness": 1},
            "environments": {"train": [digits(), terminal()]},
            "trainer": {
                "replicas": 1,
                "gpusPerReplica": 0,
                "seqLen": 1024,
                "compile": False,
                "activationCheckpointing": "none",
                "optimizer": {"type": "adamw", "lr": 1e-3, "schedule": "linear", "warmupSteps": 3},
            },
            "inference": {"replicas": 1, "gpusPerReplica": 0, "tensorParallel": 1},
            "checkpoint": {"interval": 2, "keepLast": 3},
            "record": {"enabled": True},
            "failurePolicy": {"maxRestarts": 20, "backoffSeconds": 0},
            **spec,
        },
    }


def digits() -> dict[str, Any]:
    """A train environment that random weights find rewards in."""
    return {
        "name": "digits",
        "type": "builtin:digits",
        "args": {"partial": 0.5},
        "sampling": {"temperature": 1.0, "maxCompletionTokens": 24},
    }


def terminal() -> dict[str, Any]:
    """A train environment that random weights find no reward in, but warnings to learn."""
    return {
        "name": "terminal",
        "type": "builtin:terminal",
        "maxTurns": 2,
        "sampling": {"temperature": 1.0, "maxCompletionTokens": 8},
        "echo": {"warning": {"alpha": 0.05}, "tool": {"alpha": 0.05}},
    }


class LocalRun:
    """One run directory, and the ``echorl run`` that works in it."""

    def __init__(self, folder: Path, document: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.root = folder / "run"
        self.directory = RunDirectory(self.root)
        self.markers = folder / "markers"
        self.markers.mkdir(exist_ok=True)
        self._file = folder / "run.yaml"
        self.write(document)
        self._outputs = folder
        self._starts = 0
        self._mark = f"{os.getpid()}-{random.randbytes(6).hex()}"
        self.process: subprocess.Popen[bytes] | None = None

    # Starting and ending.

    def write(self, document: Mapping[str, Any]) -> None:
        """Write the manifest that the next start takes."""
        self._file.write_text(yaml.safe_dump(dict(document)))

    @property
    def arguments(self) -> list[object]:
        """Of ``echorl``."""
        return ["run", self._file, "--out", self.root, "--plain"]

    def environment(self, faults: Mapping[str, str] | None = None) -> dict[str, str]:
        """All variables of ``echorl``; ``faults``: see ``start``."""
        points = [f"{point}{when}!{self.markers / point}" for point, when in (faults or {}).items()]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("ECHORL_", "CUDA_"))}
        inference = os.environ.get("ECHORL_INFERENCE_PYTHON")
        return {
            **inherited,
            **({"ECHORL_INFERENCE_PYTHON": inference} if inference else {}),
            MARK: self._mark,
            "ECHORL_FAULTS": ",".join(points),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, faults: Mapping[str, str] | None = None) -> "LocalRun":
        """Start ``echorl run`` in a session of its own.

        ``faults``: "@passage" or "" by point; each happens once in this run directory's life.
        """
        self._starts += 1
        with self._output_file.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "echorl_cli", *map(str, self.arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=self.environment(faults),
            )
        return self

    @property
    def supervisor(self) -> subprocess.Popen[bytes]:
        """The newest ``echorl run``."""
        assert self.process is not None, "not started"
        return self.process

    @property
    def _output_file(self) -> Path:
        return self._outputs / f"output.{self._starts}.log"

    def output(self) -> str:
        """What the newest ``echorl run`` has printed."""
        return self._output_file.read_text(errors="replace")

    def ended(self, deadline_s: float) -> int:
        """Its exit code, once it has ended.

        Raises:
            TimeoutError: it still runs at the deadline; says where it stands.
        """
        try:
            return self.supervisor.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the run did not end within {deadline_s:.0f} s:\n{self.output()[-4000:]}") from None

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.supervisor.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL to the supervisor alone."""
        self.supervisor.kill()
        self.supervisor.wait()

    # Looking at it.

    def processes(self) -> list[Stat]:
        """Living processes that descend from any ``echorl run`` of this object, those included."""
        found = marked(self._mark)
        return [*found, *(stat for stat in noted(self.root) if stat not in found)]

    def roles(self) -> dict[str, int]:
        """Process ids of the living role processes, by role and index (``trainer-0``)."""
        return roles_of(self.processes())

    def state(self) -> dict[str, Any]:
        """``state.json`` of the supervisor; empty before there is one."""
        try:
            state: dict[str, Any] = json.loads((self.root / "state.json").read_text())
        except FileNotFoundError:
            return {}
        return state

    def orchestrator_address(self) -> str | None:
        """Host and port of the newest attempt's orchestrator; None before its config is there."""
        config = self.directory.attempt(self.directory.last_attempt()) / "configs" / "orchestrator.json"
        try:
            return f"127.0.0.1:{json.loads(config.read_text())['port']}"
        except (OSError, ValueError):
            return None

    def orchestrator_state(self) -> dict[str, Any]:
        """``GET /state`` of the orchestrator; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.orchestrator_address()}/state", timeout=5) as answer:
                state: dict[str, Any] = json.load(answer)
        except (OSError, ValueError, http.client.HTTPException):  # the last: it was killed while it answered
            return {}
        return state

    def step(self) -> int:
        """The newest trained step that the orchestrator tells; 0 while it tells none."""
        return int(self.orchestrator_state().get("step") or 0)

    def until(self, question: Callable[[], T | None], what: str, deadline_s: float) -> T:
        """The first true answer while the run goes on.

        Raises:
            TimeoutError: there is none within ``deadline_s``, or the run ended before; says where it stands.
        """

        def asked() -> T | None:
            if self.supervisor.poll() is not None:
                raise TimeoutError(f"the run ended before: {what}")
            return question()

        try:
            return eventually(asked, what, deadline_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.output()[-4000:]}") from None

    def until_step(self, step: int, deadline_s: float) -> None:
        """Wait until the orchestrator says that ``step`` is trained; raises as ``until``."""
        self.until(lambda: self.step() >= step, f"step {step}", deadline_s)

    def assert_nothing_left(self, deadline_s: float = 60.0) -> None:
        """No process of this run lives any more."""
        try:
            eventually(lambda: not self.processes(), "the end of every process", deadline_s)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {self.processes()}") from None

    def prepared(self) -> list[tuple[int, Prepared]]:
        """Attempts with what they were prepared from."""
        return prepared_attempts(self.directory)

    def log(self, name: str) -> str:
        """All log lines of a role's processes (``trainer-0``), all attempts."""
        files = sorted(self.root.glob(f"logs/attempt_*/{name}*.log"))
        return "\n".join(file.read_text(errors="replace") for file in files)

    def end(self) -> None:
        """Kill whatever lives."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        while left := self.processes():
            for stat in left:
                try:
                    os.kill(stat.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(_POLL_S)


@contextmanager
def local_run(folder: Path, document: Mapping[str, Any]) -> Iterator[LocalRun]:
    """A run that is ended with all its processes whatever happens."""
    run = LocalRun(folder, document)
    try:
        yield run
    finally:
        run.end()
