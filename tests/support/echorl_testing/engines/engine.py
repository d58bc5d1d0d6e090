"""Real vLLM engines for tests: started in a session of their own, awaited, and ended whatever happens."""

import ctypes
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from echorl_core.config import InferenceConfig, LoraConfig, ModelConfig, SpeculativeConfig
from echorl_testing.ports import free_port

REPOSITORY = Path(__file__).resolve().parents[4]
_START_DEADLINE_S = 400.0
_END_DEADLINE_S = 60.0
_PR_SET_PDEATHSIG = 1


@dataclass
class Engine:
    """A running engine."""

    url: str
    token: str
    run_uid: str
    model: Path
    work: Path
    log: Path
    process: subprocess.Popen[bytes]

    def tail(self, lines: int = 40) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def members(self) -> list[int]:
        """Living processes of the engine; a process that waits to be reaped is dead."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == self.process.pid and fields[0] != "Z":
                    found.append(int(entry.name))
        return found

    def wait_until_gone(self, deadline_s: float = _END_DEADLINE_S) -> int:
        """Exit code of the engine's process, once none of its processes is left."""
        deadline = time.monotonic() + deadline_s
        code = self.process.wait(deadline_s)
        while self.members():
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes of the engine are left after {deadline_s} s: {self.members()}")
            time.sleep(0.05)
        return code


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _wait_for_health(engine: Engine) -> None:
    deadline = time.monotonic() + _START_DEADLINE_S
    while True:
        try:
            with urllib.request.urlopen(f"{engine.url}/health", timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        if engine.process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"engine did not start (exit code {engine.process.returncode}):\n{engine.tail()}")
        time.sleep(0.1)


@contextmanager
def running_engine(
    model: Path,
    folder: Path,
    *,
    run_uid: str = "test-run",
    token: str = "test-token",
    extra_args: list[str] | None = None,
    variables: Mapping[str, str] | None = None,
    max_model_len: int = 1024,
    lora: LoraConfig | None = None,
    speculative: SpeculativeConfig | None = None,
) -> Iterator[Engine]:
    """Start ``python -m echorl_vllm`` on a free port and wait for ``/health``; its whole session is killed at the end.

    Args:
        model: folder of a float32 model.
        folder: where config, log and work folder go.
        run_uid: the run that the engine belongs to.
        token: its admin token.
        extra_args: added to vLLM's command line.
        variables: added to its environment, e.g. fault points.
        max_model_len: context length in tokens.
        lora: the adapter that is updated in place of the model.
        speculative: how the engine guesses tokens.
    """
    python = REPOSITORY / ".venv-inference" / "bin" / "python"
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    InferenceConfig(
        model=ModelConfig(path=str(model), dtype="float32", max_model_len=max_model_len, renderer="engine", lora=lora),
        served_name="policy" if lora is None else "base",
        port=port,
        speculative=speculative,
        extra_args=extra_args or [],
    ).dump(folder / "inference.json")
    environment = {**os.environ, "ECHORL_RUN_UID": run_uid, "ECHORL_ADMIN_TOKEN": token, **(variables or {})}
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen(
            [python, "-m", "echorl_vllm", "--config", folder / "inference.json", "--work", folder / "work"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - prctl takes no lock that a thread could hold
        )
    engine = Engine(
        url=f"http://127.0.0.1:{port}",
        token=token,
        run_uid=run_uid,
        model=model,
        work=folder / "work",
        log=folder / "engine.log",
        process=process,
    )
    try:
        _wait_for_health(engine)
        yield engine
    finally:
        _end(engine)


def _end(engine: Engine) -> None:
    if engine.process.poll() is None:
        engine.process.terminate()
    try:
        engine.wait_until_gone()
    except (subprocess.TimeoutExpired, TimeoutError):
        for pid in engine.members():
            os.kill(pid, signal.SIGKILL)
        engine.process.wait(_END_DEADLINE_S)
