"""An image for coding tasks, of this machine's own programs: a shell, git, patch and a Python."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

from echorl_testing.cluster.images import Image

CODING = "echorl.test/coding:1"
_BUSYBOX, _GIT, _PYTHON = Path("/usr/bin/busybox"), Path("/usr/bin/git"), Path("/usr/bin/python3")
_UNUSED = {"__pycache__", "test", "idlelib", "tkinter", "lib2to3", "ensurepip", "turtledemo", "pydoc_data", "distutils"}
_LINKS = ("lib", "lib64")


def missing() -> str:
    """What this machine lacks for it; empty: nothing."""
    return ", ".join(str(path) for path in (_BUSYBOX, _GIT, _PYTHON) if not path.exists())


def coding_image() -> Image:
    """The image; ``/repo`` is for everyone to write."""
    python = _PYTHON.resolve()
    modules = list(_modules(Path("/usr/lib") / python.name))
    programs = {"bin/busybox": _BUSYBOX, "usr/bin/git": _GIT, "usr/bin/python3": python}
    needed = [_GIT, python, *(path for path in modules if path.suffix == ".so")]
    files = {_inside(path): path for path in [*modules, *_libraries(needed)]}
    tools = subprocess.run([_BUSYBOX, "--list"], check=True, capture_output=True, text=True).stdout.split()
    return Image(
        CODING,
        files={**files, **programs},
        texts={"etc/passwd": "agent:x:1000:1000:agent:/tmp:/bin/sh\n", "etc/group": "agent:x:1000:\n"},
        links={
            **{f"bin/{tool}": "busybox" for tool in tools if tool != "busybox"},
            **{name: f"usr/{name}" for name in _LINKS},
        },
        folders=["tmp", "repo"],
        command=["/bin/sh"],
        user=1000,
    )


def _modules(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and not _UNUSED & set(path.relative_to(folder).parts):
            yield path


def _libraries(programs: list[Path]) -> Iterator[Path]:
    listed = subprocess.run(["ldd", *programs], check=True, capture_output=True, text=True).stdout
    for word in set(listed.split()):
        if word.startswith("/") and not word.endswith(":"):
            yield Path(word)


def _inside(path: Path) -> str:
    """Where a file of this machine is in the image, whose ``/lib`` is ``/usr/lib``."""
    place = str(path).removeprefix("/")
    return place if place.startswith("usr/") else f"usr/{place}"
