"""What built images hold, layer by layer, read where buildah keeps it; and what must not be in them."""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echorl_testing.cluster.built_images import buildah, tag
from echorl_testing.cluster.errors import ClusterError

BASE_LABEL = "org.opencontainers.image.base.name"

_PROGRAM_FOLDERS = ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "opt/echorl/bin")
_COMPILER = re.compile(r"(.*-)?(gcc|cc|cpp|c89|c99|ld|ld\.(bfd|gold)|as|ar|gcc-(ar|nm|ranlib))(-\d+)?")
_BUILD_TOOL = re.compile(
    r"(.*-)?(g\+\+|c\+\+|clang|make|cmake|nvcc|rustc|cargo|go|git|uvx?|buildah|debootstrap)(-\d+)?"
)
_INSTALLER = re.compile(r"pip[\d.]*|easy_install.*")
"""The base may bring its own."""
_EMPTY = ("root", "tmp", "srv", "mnt", "media", "build", "run", "var/cache", "var/lib/apt/lists", "var/tmp", "etc/ssl")
"""Nothing of ours belongs there: caches, mounts of the build, the authority of the network it was built in."""
_EMPTY_ANYWHERE = frozenset({".cache", ".git", ".ssh", ".aws", ".docker", ".kube", ".venv", "pip-cache", "uv-cache"})
_SECRET_NAME = re.compile(
    r"\.netrc|\.pypirc|\.git-credentials|\.env|id_(rsa|dsa|ecdsa|ed25519)|.*kubeconfig|master-key"
)
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_SECRET_VARIABLE = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|CERT|PROXY", re.IGNORECASE)
_KEY_BYTES = 64


@dataclass(frozen=True)
class Layer:
    """A layer, and whether the image got it from its base."""

    folder: Path
    of_base: bool

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Every file and link with its path in the image; what only hides a file of a lower layer is left out."""
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = Path(folder) / name
                found = path.lstat()
                if not stat.S_ISCHR(found.st_mode):
                    yield str(path.relative_to(self.folder)), found


def layers(name: str) -> list[Layer]:
    """Layers of one of our images, the top one first.

    Raises:
        ClusterError: it is not built, or its base is gone.
    """
    storage = Path(json.loads(buildah("info"))["store"]["GraphRoot"])
    image = inspected(name)
    base = _chain(storage, image["OCIv1"]["config"]["Labels"][BASE_LABEL])
    return [Layer(storage / "overlay" / one / "diff", one in base) for one in _chain(storage, f"localhost/{tag(name)}")]


def inspected(name: str) -> dict[str, Any]:
    """What buildah tells of an image of ours."""
    found: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", f"localhost/{tag(name)}"))
    return found


def size_bytes(name: str) -> int:
    """Bytes of all files of all layers, each counted as often as it is stored."""
    return sum(found.st_size for layer in layers(name) for _, found in layer.files())


def problems(layer: Layer, *, compiler: bool) -> list[str]:
    """What a layer must not hold. ``compiler``: this image may have one for C."""
    found = []
    for path, status in layer.files():
        folder, _, name = path.rpartition("/")
        if folder in _PROGRAM_FOLDERS and (why := _tool(name, of_base=layer.of_base, compiler=compiler)):
            found.append(f"{path}: {why}")
        if layer.of_base:
            continue
        if any(path.startswith(f"{one}/") for one in _EMPTY) or _EMPTY_ANYWHERE & set(folder.split("/")):
            found.append(f"{path}: nothing of ours belongs there")
        if _SECRET_NAME.fullmatch(name) or _has_private_key(layer.folder / path, status):
            found.append(f"{path}: looks like a secret")
    return found


def config_problems(image: Mapping[str, Any]) -> list[str]:
    """What an image's config must not say."""
    config = image["OCIv1"]["config"]
    found = [f"variable {one.partition('=')[0]}" for one in config["Env"] if _SECRET_VARIABLE.search(one)]
    if config["User"] != "10001:10001":
        found.append(f"user {config['User']}")
    return found


def _tool(name: str, *, of_base: bool, compiler: bool) -> str | None:
    if _BUILD_TOOL.fullmatch(name) or (_COMPILER.fullmatch(name) and not compiler):
        return "a build tool"
    return "an installer" if _INSTALLER.fullmatch(name) and not of_base else None


def _has_private_key(path: Path, status: os.stat_result) -> bool:
    if not stat.S_ISREG(status.st_mode) or path.suffix in {".py", ".pyc", ".so", ".h", ".pyi"}:
        return False
    with path.open("rb") as file:
        return _PRIVATE_KEY.match(file.read(_KEY_BYTES)) is not None


def _chain(storage: Path, name: str) -> list[str]:
    """Ids of an image's layers, the top one first."""
    images = json.loads((storage / "overlay-images" / "images.json").read_text())
    wanted = {name, f"localhost/{name}"}
    top = next((image["layer"] for image in images if wanted & set(image.get("names") or ())), None)
    if top is None:
        top = _by_last_part(images, name)
    parents = {one["id"]: one.get("parent") for one in _layers(storage)}
    chain, at = list[str](), top
    while at:
        chain.append(at)
        at = parents[at]
    return chain


def _by_last_part(images: list[dict[str, Any]], name: str) -> str:
    """The top layer of an image that was pulled by a short name: it is kept under its full one."""
    for image in images:
        if any(one.endswith(f"/{name}") for one in image.get("names") or ()):
            return str(image["layer"])
    raise ClusterError(f"image {name} is not in the storage")


def _layers(storage: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((storage / "overlay-layers" / "layers.json").read_text())
    return found
