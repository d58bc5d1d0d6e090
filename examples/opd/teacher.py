"""A stock vLLM server on the CPU as a teacher, for as long as a block of code runs."""

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_READY_WITHIN_S = 300.0
_ENDED_WITHIN_S = 30.0


def command(python: Path, model: Path, *, port: int, max_model_len: int) -> list[str]:
    """The server's command line. ``max_model_len``: above the policy's, as a request asks for one token more."""
    argv = [str(python), "-P", "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "teacher", "--dtype", "float32"]
    argv += ["--max-model-len", str(max_model_len), "--generation-config", "vllm", "--disable-uvicorn-access-log"]
    return [*argv, "--enforce-eager", "--kv-cache-memory-bytes", "128M", "--distributed-executor-backend", "uni"]


def variables(work: Path) -> dict[str, str]:
    """What its environment gets on top: one thread, one process for engine and worker, no compiler, no network."""
    return {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CACHE_ROOT": str(work / "cache"),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }


@contextmanager
def serving(python: Path, model: Path, work: Path, *, port: int, max_model_len: int = 1024) -> Iterator[str]:
    """The base URL of a teacher that answers; its log is ``work/teacher.log``.

    Raises:
        RuntimeError: it ended, or does not answer in time.
    """
    work.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:{port}"
    with (work / "teacher.log").open("wb") as log:
        argv = command(python, model, port=port, max_model_len=max_model_len)
        process = subprocess.Popen(argv, stdout=log, stderr=log, env={**os.environ, **variables(work)})
        try:
            _wait(process, url, work / "teacher.log")
            yield f"{url}/v1"
        finally:
            process.terminate()
            try:
                process.wait(_ENDED_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the teacher ended with {process.returncode}; see {log}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310 - our own server
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise RuntimeError(f"the teacher does not answer after {_READY_WITHIN_S:.0f} s; see {log}")
