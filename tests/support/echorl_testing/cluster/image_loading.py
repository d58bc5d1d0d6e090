"""Built images for the real node of a cluster: by hard links where both keep their layers on one file system.

containerd asks for a layer's content only where it has no snapshot of it yet. So the snapshots are made first, out of
the files that buildah keeps, and then the image is imported without its layers: seconds, and no disk, for what takes
minutes and three times the image's size as an archive. Neither of the two ever writes to a layer's files.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from echorl_testing.cluster.built_images import buildah, built, policy, tag
from echorl_testing.cluster.errors import ClusterError
from echorl_testing.cluster.image_layers import inspected, layers
from echorl_testing.cluster.real_node import RealNode

_LINK_TIMEOUT_S = 600.0


def load(node: RealNode, names: Sequence[str]) -> None:
    """Import images into a node.

    Raises:
        ClusterError: one is not built, or could not be imported.
    """
    if missing := sorted(set(names) - set(built())):
        raise ClusterError(f"images are not built: {', '.join(missing)} (make images)")
    for name in names:
        image = inspected(name)
        identifiers: list[str] = json.loads(image["Config"])["rootfs"]["diff_ids"]
        folders = [layer.folder for layer in reversed(layers(name))]
        if len(folders) == len(identifiers) and _share(node, folders, identifiers):
            node.ctr("images", "import", "-", stdin=_without_layers(tag(name), image))
        else:
            _copy(node, name)


def _share(node: RealNode, folders: Sequence[Path], identifiers: Sequence[str]) -> bool:
    """A snapshot for each layer, the lowest first; False if the two storages are on different file systems."""
    parent = ""
    for folder, identifier in zip(folders, identifiers, strict=True):
        chain = identifier if not parent else _sha256(f"{parent} {identifier}".encode())
        if chain not in node.ctr("snapshots", "list").split():
            key = f"linking-{chain}"
            node.ctr("snapshots", "prepare", key, *([parent] if parent else []))
            if not _link(folder, _upper(node.ctr("snapshots", "mounts", "/x", key))):
                node.ctr("snapshots", "remove", key)
                return False
            node.ctr("snapshots", "commit", chain, key)
        parent = chain
    return True


def _upper(mount: str) -> Path:
    """Where a snapshot's own files go: of ``mount -t overlay ... -o upperdir=X,...``, or of a bind mount."""
    words = mount.split()
    options = words[words.index("-o") + 1].split(",")
    upper = next((one.partition("=")[2] for one in options if one.startswith("upperdir=")), None)
    return Path(upper or words[words.index("bind") + 1])


def _link(source: Path, target: Path) -> bool:
    # buildah mounts its storage onto itself, and no link leads from one mount to another: look below it.
    script = 'while mountpoint -q "$1"; do umount --lazy "$1"; done; exec cp --archive --link "$2/." "$3/"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", *map(str, (source.parents[1], source, target))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LINK_TIMEOUT_S, check=False)
    if done.returncode and "cross-device" not in done.stderr:
        raise ClusterError(f"a layer could not be linked: {done.stderr.strip()[-1000:]}")
    return done.returncode == 0


def _without_layers(name: str, image: dict[str, Any]) -> bytes:
    """An OCI archive of manifest and config alone."""
    manifest, config = image["Manifest"].encode(), image["Config"].encode()
    described = {
        "mediaType": json.loads(manifest)["mediaType"],
        "digest": _sha256(manifest),
        "size": len(manifest),
        "annotations": {"io.containerd.image.name": f"docker.io/{name}"},
    }
    files = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [described]}).encode(),
        **{f"blobs/sha256/{_sha256(blob).partition(':')[2]}": blob for blob in (manifest, config)},
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _copy(node: RealNode, name: str) -> None:
    """By an archive: every layer is written three times."""
    room = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "echorl"
    folder = Path(tempfile.mkdtemp(dir=room))  # of several GiB, which a memory-backed /tmp may not hold
    try:
        archive = folder / "image.tar"
        buildah("push", "--quiet", *policy(), f"localhost/{tag(name)}", f"docker-archive:{archive}:{tag(name)}")
        node.import_image(archive)
    finally:
        shutil.rmtree(folder)
