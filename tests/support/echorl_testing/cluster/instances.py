"""Which clusters this machine has, who owns them, and what is left of those whose owner was killed."""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from echorl_testing.cluster import cgroups, network
from echorl_testing.cluster.errors import ClusterError
from echorl_testing.cluster.layout import BASE, NUMBERS, Layout
from echorl_testing.cluster.processes import ProcessId, myself
from echorl_testing.cluster.sandbox import Sandbox

_LOCK_DEADLINE_S = 120.0
_OWNER = "owner.json"
_SANDBOX = "sandbox"


def claim(numbers: Sequence[int] = NUMBERS) -> Layout:
    """Take the first free number; this process owns it until :func:`hand_over` or :func:`release`.

    Leftovers of clusters whose owner is gone are removed first.

    Raises:
        ClusterError: all numbers are taken, or this machine routes their addresses elsewhere.
    """
    refused = []
    with _locked():
        _sweep()
        for layout in map(Layout, numbers):
            if layout.folder.exists():
                refused.append(f"{layout.number}: in use")
            elif routes := network.foreign_routes(layout):
                refused.append(f"{layout.number}: its addresses collide with {', '.join(routes)}")
            else:
                network.disconnect(layout)
                layout.folder.mkdir(mode=0o700)
                (layout.folder / _OWNER).write_text(myself().to_json())
                return layout
    raise ClusterError(f"no number for another cluster: {'; '.join(refused)}")


def note_sandbox(layout: Layout, sandbox: Sandbox) -> None:
    """Write down a cluster's namespaces, so that it can be found and ended."""
    sandbox.note(layout.folder / _SANDBOX)


def find_sandbox(layout: Layout) -> Sandbox | None:
    """A cluster's namespaces, if they were made; alive or not."""
    return Sandbox.find(layout.folder / _SANDBOX)


def hand_over(layout: Layout, owner: ProcessId) -> None:
    """Make another process the owner: the cluster counts as left over when that one is gone."""
    # A sweep that read half of it would take the cluster for left over.
    fresh = layout.folder / f"{_OWNER}.new"
    fresh.write_text(owner.to_json())
    fresh.replace(layout.folder / _OWNER)


def owned(layout: Layout) -> bool:
    """Whether a cluster has this number and its owner lives."""
    owner = ProcessId.from_file(layout.folder / _OWNER)
    return owner is not None and owner.alive


def sweep() -> None:
    """Remove what is left of clusters whose owner is gone."""
    with _locked():
        _sweep()


def release(layout: Layout) -> None:
    """End a cluster: processes, mounts, devices, cgroups, files. Returns when nothing of it is left."""
    with _locked():
        _remove(layout)


def _sweep() -> None:
    for entry in BASE.iterdir():
        if entry.name.isdigit() and not owned(layout := Layout(int(entry.name))):
            _remove(layout)


def _remove(layout: Layout) -> None:
    sandbox = find_sandbox(layout)
    if sandbox is not None:
        sandbox.end()
    network.disconnect(layout)
    cgroups.remove(layout.name)
    if layout.folder.exists():
        shutil.rmtree(layout.folder)


@contextmanager
def _locked() -> Iterator[None]:
    """Hold the machine's one lock: on the folder itself, so that no lock file stays behind."""
    handle = _lock(time.monotonic() + _LOCK_DEADLINE_S)
    try:
        yield
    finally:
        with suppress(OSError):  # other clusters' folders are in it
            BASE.rmdir()
        os.close(handle)


def _lock(deadline: float) -> int:
    while True:
        BASE.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(BASE, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(handle, BASE):
                return handle
        except BlockingIOError:
            pass
        os.close(handle)
        if time.monotonic() > deadline:
            raise ClusterError(f"{BASE} has been locked by another process for {_LOCK_DEADLINE_S:g} s")
        time.sleep(0.02)


def _is(handle: int, folder: Path) -> bool:
    """Whether the folder that was locked is still the one with that name."""
    try:
        return os.fstat(handle).st_ino == folder.stat().st_ino
    except FileNotFoundError:
        return False
