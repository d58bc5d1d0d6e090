"""Processes by identity (a number that was given to another process is never touched), their ends and their logs."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from echorl_testing.cluster.errors import ClusterError

_POLL_S = 0.02
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class ProcessId:
    """A process of this boot: its number and when it started (clock ticks since boot)."""

    pid: int
    started: int
    boot: str

    @property
    def alive(self) -> bool:
        """Whether it exists and is not merely waiting to be reaped."""
        return self.boot == boot_id() and _started(self.pid) == self.started

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is alive."""
        if self.alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def to_json(self) -> str:
        """For :meth:`from_file`."""
        return json.dumps({"pid": self.pid, "started": self.started, "boot": self.boot})

    @staticmethod
    def from_file(path: Path) -> "ProcessId | None":
        """What was noted in a file; None if there is none or it is damaged."""
        try:
            noted = json.loads(path.read_text())
            return ProcessId(int(noted["pid"]), int(noted["started"]), str(noted["boot"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True)
class Component:
    """A process of a cluster and the file that it logs to."""

    name: str
    process: ProcessId
    log: Path

    def tail(self, lines: int = 25) -> str:
        """The end of its log."""
        return tail(self.log, lines)


def boot_id() -> str:
    """Differs after every boot."""
    return _BOOT_ID.read_text().strip()


def identify(pid: int) -> ProcessId | None:
    """The living process with this number."""
    started = _started(pid)
    return None if started is None else ProcessId(pid, started, boot_id())


def myself() -> ProcessId:
    """This process."""
    found = identify(os.getpid())
    if found is None:
        raise ClusterError("/proc does not show this process: is it mounted?")
    return found


def child_of(pid: int, *, seconds: float = 30.0) -> ProcessId:
    """The one child of a process, as soon as there is one.

    Raises:
        ClusterError: no child within ``seconds``, or the process ended.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and _started(pid) is not None:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (fields := _stat(int(entry.name))) and int(fields[1]) == pid:
                return ProcessId(int(entry.name), int(fields[19]), boot_id())
        time.sleep(_POLL_S)
    ended = _started(pid) is None
    raise ClusterError(f"process {pid} {'ended' if ended else f'started no child within {seconds:g} s'}")


def entry_of(process: ProcessId) -> ProcessId | None:
    """The ``nsenter`` that started a living process inside a namespace; None if either is gone."""
    fields = _stat(process.pid) if process.alive else None
    parent = None if fields is None else identify(int(fields[1]))
    return parent if parent is not None and _name(parent.pid) == "nsenter" else None


def is_stopped(process: ProcessId) -> bool:
    """Whether it is frozen by a signal."""
    fields = _stat(process.pid) if process.alive else None
    return fields is not None and fields[0] == "T"


def end(processes: Iterable[ProcessId], *, grace_s: float, seconds: float = 20.0) -> None:
    """SIGTERM, after ``grace_s`` SIGKILL; returns when all are gone.

    Raises:
        ClusterError: one is left ``seconds`` after SIGKILL.
    """
    left = [process for process in processes if process.alive]
    for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, seconds)):
        if number is signal.SIGTERM and grace_s == 0:
            continue
        for process in left:
            process.signal(number)
        deadline = time.monotonic() + patience
        while (left := [process for process in left if process.alive]) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    if left:
        raise ClusterError(f"processes {[process.pid for process in left]} are left {seconds:g} s after SIGKILL")


def wait_for(what: str, condition: Callable[[], bool], *, seconds: float, components: Iterable[Component] = ()) -> None:
    """Return once ``condition`` holds.

    Raises:
        ClusterError: a component ended, or the condition does not hold within ``seconds``; with the ends of the logs.
    """
    watched = list(components)
    deadline = time.monotonic() + seconds
    while not condition():
        for component in watched:
            if not component.process.alive:
                raise ClusterError(f"{what}: {component.name} ended. End of {component.log}:\n{component.tail()}")
        if time.monotonic() > deadline:
            logs = "".join(f"\nEnd of {component.log}:\n{component.tail()}" for component in watched)
            raise ClusterError(f"{what}: not within {seconds:g} s.{logs}")
        time.sleep(_POLL_S)


def tail(log: Path, lines: int = 25) -> str:
    """The end of a log; says so when there is none."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) or "(empty)"
    except OSError as error:
        return f"({error})"


def _stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/<pid>/stat`` from the state on; None for a process that is gone or waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[19])
