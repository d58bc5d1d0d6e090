"""Servers of other libraries, each in a Python environment of its own that is made once in the cache."""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from echorl_testing.ports import free_port
from echorl_testing.waiting import until

_INSTALL_S = 900.0
_START_S = 200.0
_HERE = Path(__file__).parent


def installed(name: str, *requirements: Sequence[str], python: str = sys.executable) -> Path:
    """A Python of the version of ``python`` that has what pip makes of ``requirements``, one call after the other.

    It skips where the registry cannot be reached. A new ``name`` makes a new environment.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "echorl" / "hubs"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / name
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([python, "-m", "venv", str(folder)], check=True, capture_output=True)
            for one in requirements:
                _install(folder, one)
            (folder / "whole").touch()
    return folder / "bin" / "python"


def _install(folder: Path, requirements: Sequence[str]) -> None:
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot install {' '.join(requirements)}: {done.stderr.strip()[-500:]}")


@contextmanager
def served(python: Path, program: str, health: str) -> Iterator[str]:
    """The address of a server that runs meanwhile: ``program`` of this folder, which is there when ``health`` is."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen([python, _HERE / program, str(port)], env=variables, stdout=subprocess.DEVNULL)
    try:
        asyncio.run(until(lambda: process.poll() is not None or _answers(address + health), _START_S))
        assert process.poll() is None, "the server ended"
        yield address
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
