"""Resources servers of NeMo Gym of one version."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from echorl_testing.hubs import served as servers

VERSION = "0.4.0"
_OLDEST, _NEWEST = 12, 15
"""Minor versions of Python 3 that the library runs in; it needs a newer one than we do."""
_NEEDS = (
    *("aiohttp", "fastapi", "gprof2dot", "hydra-core", "itsdangerous", "mcp<2", "omegaconf", "openai<=2.7.2"),
    *("orjson", "pandas", "pydot", "python-multipart", "ray", "requests", "rich", "uvicorn", "wandb", "yappi"),
)
"""What resources servers import, a third of what the library requires."""


@contextmanager
def served() -> Iterator[str]:
    """The address of a server that runs meanwhile; below it the resources servers of ``nemo_gym_server.py`` by name."""
    library = ["--no-deps", f"nemo-gym=={VERSION}"]
    python = servers.installed(f"nemo-gym-{VERSION}", library, _NEEDS, python=_newer_python())
    with servers.served(python, "nemo_gym_server.py", "/mcqa/openapi.json") as address:
        yield address


def _newer_python() -> str:
    """A Python that the library runs in; skips where there is none."""
    names = [f"python3.{minor}" for minor in range(_OLDEST, _NEWEST)]
    kept = [path for name in names for path in sorted(Path.home().glob(f".pyenv/versions/{name[6:]}.*/bin/{name}"))]
    for candidate in (*filter(None, map(shutil.which, names)), *map(str, kept)):
        # A name on the path may be a stand-in for a version that is not chosen.
        if subprocess.run([candidate, "--version"], capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.skip(f"NeMo Gym needs a Python from 3.{_OLDEST} on, and this machine has none")
