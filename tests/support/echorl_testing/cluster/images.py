"""Container images made without a registry: an archive that ``ctr images import`` reads."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from echorl_testing.cluster.built_images import tag

PAUSE = "echorl.test/pause:1"
BUSYBOX = "echorl.test/busybox:1"
"""Shell and small tools, statically linked; runs as user 10001 unless the pod says otherwise."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_USER = 10001


@dataclass(frozen=True)
class Image:
    """What one layer holds and how a container of it starts."""

    name: str
    files: Mapping[str, Path] = field(default_factory=dict)
    """Programs by path in the image, copied from this machine."""
    texts: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[str] = ()
    """Writable by everyone."""
    command: Sequence[str] = ()
    user: int | None = None


def pause(program: Path) -> Image:
    """Holds a pod's namespaces."""
    return Image(PAUSE, files={"pause": program}, command=["/pause"], user=65535)


def busybox(program: Path, tools: Sequence[str]) -> Image:
    """``tools``: names under which the program is called."""
    return Image(
        BUSYBOX,
        files={"bin/busybox": program},
        texts={
            "etc/passwd": f"root:x:0:0:root:/:/bin/sh\nechorl:x:{_USER}:{_USER}:echorl:/tmp:/bin/sh\n",
            "etc/group": f"root:x:0:\nechorl:x:{_USER}:\n",
        },
        links={f"bin/{tool}": "busybox" for tool in tools if tool != "busybox"},
        folders=["tmp"],
        command=["/bin/sh"],
        user=_USER,
    )


def sandbox_daemon(program: Path) -> Image:
    """What puts the daemon into a pod's sandbox: ``install PATH``."""
    return Image(tag("sandbox-daemon"), files={"daemon": program}, command=["/daemon"], user=_USER)


def archive(image: Image) -> bytes:
    """The image in the format of ``docker save``; equal bytes for equal content."""
    layer = _layer(image)
    digest = hashlib.sha256(layer).hexdigest()
    machine = platform.machine()
    config = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": {
                "Cmd": list(image.command),
                "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
                "User": "" if image.user is None else f"{image.user}:{image.user}",
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [image.name], "Layers": [f"{digest}.tar"]}]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in (
            (f"{digest}.tar", layer),
            (config_name, config),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            _add(tar, name, content, mode=0o644)
    return out.getvalue()


def _layer(image: Image) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        paths = [*image.files, *image.texts, *image.links]
        parents = {str(parent) for path in paths for parent in Path(path).parents} - {"."}
        for folder in sorted(parents | set(image.folders)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder in image.folders else 0o755
            tar.addfile(entry)
        for path, source in sorted(image.files.items()):
            _add(tar, path, source.read_bytes(), mode=0o755)
        for path, text in sorted(image.texts.items()):
            _add(tar, path, text.encode(), mode=0o644)
        for path, target in sorted(image.links.items()):
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return out.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, *, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
