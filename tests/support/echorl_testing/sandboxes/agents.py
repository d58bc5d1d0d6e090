"""Real agents from their registry, each of one version, as folders that sandboxes take as an agent's installation."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

PACKAGES = {"claude-code": "@anthropic-ai/claude-code@2.1.330", "codex": "@openai/codex@0.169.0"}
"""By name in the table of agents."""
_PROGRAMS = {"claude-code": "claude-code-linux-x64/claude", "codex": "codex-linux-x64/vendor/*/bin/codex"}
"""Where a package has its program, below its scope's folder."""
_DEADLINE_S = 280.0


def installed(name: str) -> Path:
    """The folder of an agent, with ``bin``; made once a version, in the cache. Skips where npm is not, or fails."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "echorl" / "agents"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / PACKAGES[name].replace("/", "_")
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as made:
                _install(name, Path(made)).rename(folder)
    return folder


def _install(name: str, folder: Path) -> Path:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error")
    command = ["npm", "install", "--prefix", str(folder), *quiet, PACKAGES[name]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install {PACKAGES[name]}: {done.stderr.strip()}")
    programs = [path for path in folder.glob(f"node_modules/@*/{_PROGRAMS[name]}") if path.is_file()]
    if len(programs) != 1:
        raise AssertionError(f"{PACKAGES[name]}: found {len(programs)} programs for this machine, accepted is one")
    agent = folder / "agent"
    if programs[0].parent.name == "bin":
        # What stands beside its program belongs to it.
        programs[0].parents[1].rename(agent)
    else:
        (agent / "bin").mkdir(parents=True)
        programs[0].rename(agent / "bin" / programs[0].name)
        (agent / "bin" / programs[0].name).chmod(0o755)
    return agent
