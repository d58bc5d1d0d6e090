"""The project's images as ``make images`` built them: names, and the buildah that knows them."""

import json
import re
import subprocess
from pathlib import Path

from echorl_testing.cluster.errors import ClusterError

NAMES = ("operator", "orchestrator", "trainer", "inference-cpu", "inference")
_REPOSITORY = Path(__file__).resolve().parents[4]
_BUILDAH = _REPOSITORY / "scripts" / "buildah.sh"
_TIMEOUT_S = 900.0


def tag(name: str) -> str:
    """What the operator calls an image unless its settings say otherwise. Read, since nothing need be installed."""
    text = (_REPOSITORY / "core" / "echorl_core" / "__init__.py").read_text()
    version = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if version is None:
        raise ClusterError("core/echorl_core/__init__.py tells no version")
    return f"echorl/{name}:{version[1]}"


def built() -> list[str]:
    """Those of ``NAMES`` that are built."""
    found = json.loads(buildah("images", "--json") or "[]") or []
    known = {name for image in found for name in image.get("names") or ()}
    return [name for name in NAMES if f"localhost/{tag(name)}" in known]


def buildah(*arguments: str) -> str:
    """What a call of buildah prints.

    Raises:
        ClusterError: it failed.
    """
    done = subprocess.run([_BUILDAH, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise ClusterError(f"buildah {arguments[0]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def policy() -> list[str]:
    """Arguments without which buildah asks for a policy of the machine's."""
    return ["--signature-policy", str(_REPOSITORY / "images" / "signature-policy.json")]
