"""The cgroup that holds all pods of a cluster's real node, in every hierarchy of the machine."""

import time
from contextlib import suppress
from pathlib import Path

from echorl_testing.cluster.errors import ClusterError

_CPUSET_FILES = ("cpuset.cpus", "cpuset.mems")


def create(name: str) -> None:
    """Make the cgroup where it is missing. The kubelet wants it to exist."""
    for mount in _mounts():
        group = mount / name
        group.mkdir(exist_ok=True)
        for file in _CPUSET_FILES:
            # In the first version of cgroups nothing can enter a cpuset before it names processors and memory.
            if (mount / "tasks").exists() and (group / file).exists() and not (group / file).read_text().strip():
                (group / file).write_text((mount / file).read_text())


def remove(name: str, *, seconds: float = 10.0) -> None:
    """Remove the cgroup with all below it, once their processes have ended.

    Raises:
        ClusterError: one is still in use after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while left := [group for mount in _mounts() if (group := mount / name).exists()]:
        for group in left:
            _remove_tree(group)
        if time.monotonic() > deadline:
            raise ClusterError(f"cgroups are still in use after {seconds:g} s: {', '.join(map(str, left))}")
        time.sleep(0.01)


def exists(name: str) -> bool:
    """Whether it is there in any hierarchy."""
    return any((mount / name).exists() for mount in _mounts())


def _remove_tree(group: Path) -> None:
    with suppress(OSError):  # a child that a dying process still holds is tried again
        for child in group.iterdir():
            if child.is_dir():
                _remove_tree(child)
    with suppress(OSError):
        group.rmdir()


def _mounts() -> list[Path]:
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return [
        Path(fields[1]) for fields in mounts if fields[2] in ("cgroup", "cgroup2") and "ro" not in fields[3].split(",")
    ]
