"""The project's images as ``make images`` built them, for the real node of a cluster."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from echorl_testing.cluster.errors import ClusterError
from echorl_testing.cluster.real_node import RealNode

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


def load(node: RealNode, names: Sequence[str]) -> None:
    """Import images into a node.

    Raises:
        ClusterError: one is not built, or could not be imported.
    """
    if missing := sorted(set(names) - set(built())):
        raise ClusterError(f"images are not built: {', '.join(missing)} (make images)")
    with tempfile.TemporaryDirectory(dir=_room()) as folder:
        for name in names:
            archive = Path(folder) / "image.tar"
            buildah("push", "--quiet", *policy(), f"localhost/{tag(name)}", f"docker-archive:{archive}:{tag(name)}")
            node.import_image(archive)
            archive.unlink()


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


def _room() -> Path:
    """A folder for archives of several GiB, which a memory-backed /tmp may not hold."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "echorl"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
