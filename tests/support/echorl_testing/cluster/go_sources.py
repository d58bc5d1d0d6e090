"""Files of Go modules that ship more than code: from the module cache, as our go.sum pins them."""

import json
import re
import subprocess
from pathlib import Path

from echorl_testing.cluster.binaries import go
from echorl_testing.cluster.errors import ClusterError

_DEADLINE_S = 300.0


def module_files(folder: Path, module: str) -> Path:
    """Folder of a module's files; downloaded if the cache does not have them.

    Args:
        folder: of a module of ours, whose go.mod requires ``module`` and whose go.sum has its hash.
        module: its path.

    Raises:
        Unavailable: there is no Go.
        ClusterError: it cannot be had, or is not what go.sum says.
        ValueError: go.mod or go.sum does not name it.
    """
    version = _only(rf"^(?:require)?\s*{re.escape(module)} (v\S+)", folder / "go.mod")
    wanted = _only(rf"^{re.escape(module)} {re.escape(version)} (h1:\S+)", folder / "go.sum")
    command = [str(go()), "mod", "download", "-json", f"{module}@{version}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = {"Error": done.stderr}
    if found.get("Error"):
        raise ClusterError(f"{module}@{version} cannot be had: {found['Error'].strip()}")
    if found["Sum"] != wanted:
        raise ClusterError(f"{module}@{version}: found {found['Sum']}, accepted is {wanted} ({folder / 'go.sum'})")
    return Path(found["Dir"])


def _only(pattern: str, file: Path) -> str:
    found: list[str] = re.findall(pattern, file.read_text(), re.MULTILINE)
    if len(found) != 1:
        raise ValueError(f"{file}: found {len(found)} lines like {pattern}, accepted is 1")
    return found[0]
