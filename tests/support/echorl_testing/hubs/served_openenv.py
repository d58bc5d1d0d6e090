"""A server of OpenEnv of one version, in an environment of its own that is made once in the cache."""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from echorl_testing.ports import free_port
from echorl_testing.waiting import until

VERSION = "0.10.0"
_INSTALL_S = 900.0
_START_S = 200.0
_PROGRAM = Path(__file__).with_name("openenv_server.py")


def interpreter() -> Path:
    """A Python that has OpenEnv; skips where the registry cannot be reached."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "echorl" / "hubs"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"openenv-{VERSION}"
    with (cache / "openenv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _install(folder)
            (folder / "whole").touch()
    return folder / "bin" / "python"


def _install(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", f"openenv=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot install openenv {VERSION}: {done.stderr.strip()[-500:]}")


@contextmanager
def served() -> Iterator[str]:
    """The address of a server that runs meanwhile; below it the environments of ``openenv_server.py`` by name."""
    port = free_port()
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = [str(interpreter()), str(_PROGRAM), str(port)]
    process = subprocess.Popen(program, env=variables, stdout=subprocess.DEVNULL)
    try:
        asyncio.run(until(lambda: process.poll() is not None or _answers(port), _START_S))
        assert process.poll() is None, "the server ended"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/game/health", timeout=10) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
