"""Namespaces of a cluster. Their first process holds them open: when it dies, the kernel ends all the others.

So nothing can be left behind: processes, mounts and network devices inside live exactly as long as that process, even
when whoever started it is killed.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from echorl_testing.cluster import processes
from echorl_testing.cluster.errors import ClusterError, Unavailable
from echorl_testing.cluster.processes import Component, ProcessId

_HOLD = ["env", "--ignore-signal=CHLD", "sleep", "infinity"]
"""Never waits for children and ignores their end: the kernel then reaps every orphan. A shell cannot ignore it for
others: dash, for one, does so for itself alone."""
_COMMAND_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Sandbox:
    """Network, mount and process namespaces."""

    holder: ProcessId
    """Of ``unshare``; its death ends ``init``."""
    init: ProcessId
    """Process 1 of the namespace; its death ends everything."""

    @property
    def alive(self) -> bool:
        """Whether it can hold processes."""
        return self.holder.alive and self.init.alive

    def command(self, *arguments: str | Path) -> list[str]:
        """A command line that runs ``arguments`` inside."""
        namespaces = f"/proc/{self.init.pid}/ns"
        entries = [f"--{option}={namespaces}/{name}" for option, name in _NAMESPACES]
        return ["nsenter", *entries, "--", *map(str, arguments)]

    def run(
        self, *arguments: str | Path, stdin: bytes | Path | None = None, timeout_s: float = _COMMAND_TIMEOUT_S
    ) -> str:
        """Run a command inside and return its output.

        Raises:
            ClusterError: it failed or did not end in time; with what it said.
        """
        return run(self.command(*arguments), stdin=stdin, timeout_s=timeout_s)

    def spawn(self, name: str, arguments: Sequence[str | Path], log: Path) -> Component:
        """Start a process inside that goes on when this one ends; its output is appended to ``log``."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            outer = subprocess.Popen(
                self.command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=_environment(),
            )
        _forget(outer)
        try:
            return Component(name, processes.child_of(outer.pid), log)
        except ClusterError as error:
            raise ClusterError(f"{name} did not start: {error}. End of {log}:\n{processes.tail(log)}") from error

    def nested(self) -> "Sandbox":
        """Process and mount namespaces within this one, with the same network; they can be ended alone."""
        return _hold(self.command("unshare", "--pid", "--mount", *_UNSHARE, *_HOLD), levels=2)

    def end(self) -> None:
        """End everything inside. Returns when all of it is gone.

        Raises:
            ClusterError: something does not die.
        """
        processes.end([self.init], grace_s=0.0)
        processes.end([self.holder], grace_s=0.0)
        _reap()

    def note(self, folder: Path) -> None:
        """Write down what :meth:`find` needs."""
        folder.mkdir(exist_ok=True)
        (folder / "holder.json").write_text(self.holder.to_json())
        (folder / "init.json").write_text(self.init.to_json())

    @staticmethod
    def find(folder: Path) -> "Sandbox | None":
        """The sandbox that was noted in a folder, alive or not."""
        holder = ProcessId.from_file(folder / "holder.json")
        init = ProcessId.from_file(folder / "init.json")
        return None if holder is None or init is None else Sandbox(holder, init)


_NAMESPACES = (("net", "net"), ("uts", "uts"), ("mount", "mnt"), ("pid", "pid"))
_UNSHARE = ("--fork", "--kill-child", "--mount-proc")


def create(name: str, *, tethered: bool) -> Sandbox:
    """New namespaces with ``name`` as host name.

    ``tethered``: everything inside ends with the calling process, whatever ends that.

    Raises:
        Unavailable: this machine does not allow it.
    """
    check_possible()
    tether = ["setpriv", "--pdeathsig", "KILL"] if tethered else []
    sandbox = _hold([*tether, "unshare", "--net", "--uts", "--pid", "--mount", *_UNSHARE, *_HOLD], levels=1)
    sandbox.run("hostname", name)
    return sandbox


def check_possible() -> None:
    """Find out whether namespaces can be made.

    Raises:
        Unavailable: they cannot; says why.
    """
    check_root()
    try:
        run(["unshare", "--net", "--uts", "--pid", "--mount", *_UNSHARE, "true"])
    except ClusterError as error:
        raise Unavailable(f"a test cluster needs namespaces of its own, and this machine refuses: {error}") from error


def check_root() -> None:
    """Find out whether this is root.

    Raises:
        Unavailable: it is not.
    """
    if os.geteuid() != 0:
        raise Unavailable(f"a test cluster needs root, for its namespaces; this is user {os.geteuid()}")


def run(command: Sequence[str], *, stdin: bytes | Path | None = None, timeout_s: float = _COMMAND_TIMEOUT_S) -> str:
    """Run a command of this machine and return its output. ``stdin``: its input, or a file with it.

    Raises:
        ClusterError: it is missing, failed or did not end in time; with what it said.
    """
    shown = " ".join(command[:12]) + (" ..." if len(command) > 12 else "")
    try:
        if isinstance(stdin, Path):
            with stdin.open("rb") as file:
                done = subprocess.run(command, stdin=file, capture_output=True, timeout=timeout_s, check=False)
        else:
            done = subprocess.run(command, input=stdin or b"", capture_output=True, timeout=timeout_s, check=False)
    except FileNotFoundError as error:
        raise ClusterError(f"{command[0]} is not installed; it was needed for: {shown}") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"no end after {timeout_s:g} s: {shown}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise ClusterError(f"exit code {done.returncode} of {shown}: {said}")
    return done.stdout.decode(errors="replace")


def _hold(command: list[str], *, levels: int) -> Sandbox:
    outer = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=_environment(),
    )
    _forget(outer)
    holder = processes.identify(outer.pid)
    for _ in range(levels - 1):
        holder = processes.child_of(holder.pid if holder else outer.pid)
    if holder is None:
        raise ClusterError(f"ended at once: {' '.join(command)}")
    init = processes.child_of(holder.pid)
    processes.wait_for(
        "namespaces", lambda: _executable(init.pid) == "sleep", seconds=30.0, components=[_as_component(init)]
    )
    return Sandbox(holder, init)


def _environment() -> dict[str, str]:
    """Nothing of the caller's but the path: proxies and the like must not reach a cluster's components."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/bin:/sbin:/bin"
    # A third of an API server's time of a processor would be garbage collection; memory is cheaper.
    return {"PATH": path, "HOME": "/root", "GOGC": "400"}


def _as_component(process: ProcessId) -> Component:
    return Component("process 1 of the namespace", process, Path("/dev/null"))


def _executable(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


_unreaped: list[subprocess.Popen[bytes]] = []


def _forget(process: subprocess.Popen[bytes]) -> None:
    """Leave a process running without a warning when this object goes; reap those that have ended meanwhile."""
    _reap()
    _unreaped.append(process)


def _reap() -> None:
    _unreaped[:] = [process for process in _unreaped if process.poll() is None]
