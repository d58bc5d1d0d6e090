"""The loop of a sandbox's process 1: it starts commands, sees them end, ends them, and watches their memory."""

import contextlib
import errno
import os
import resource
import select
import signal
import socket
from dataclasses import dataclass
from typing import Any

from echorl_orchestrator.sandboxes.process.order import Order, receive, send
from echorl_orchestrator.sandboxes.process.tree import AGENT_HOME, Mounted

_LOOK_S = 0.1
"""Between two looks at memory, while commands run."""
_AGAIN_S = 0.02
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ROOTS = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETUID", "CAP_SETGID")
"""All that root may do: over its own tree and processes."""
_KILLED = 128 + signal.SIGKILL
_NICENESS = 5
"""What runs here comes after the run itself."""


@dataclass
class _Command:
    key: str
    killed: bool = False
    out_of_memory: bool = False


@dataclass
class _Leaving:
    """A command that ended, and what it left behind has not yet."""

    command: _Command
    status: int
    left: set[int]


@dataclass(frozen=True)
class _Process:
    parent: int
    resident_bytes: int


class Keeper:
    """Serves one channel until its other end is closed."""

    def __init__(self, channel: socket.socket, order: Order, mounted: Mounted) -> None:
        self._channel = channel
        self._order = order
        self._mounted = mounted
        self._commands: dict[int, _Command] = {}
        """By the number of bubblewrap's outer process."""
        self._leaving: list[_Leaving] = []

    def serve(self) -> None:
        """Do what is asked; returns at the channel's end."""
        heard = self._channel.fileno()
        woken, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waking)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([heard, woken], [], [], self._patience())
            if woken in ready:
                os.read(woken, 4096)
            if heard in ready:
                told = receive(self._channel)
                if told is None:
                    return
                self._answer(*told)
            self._reap()
            if self._commands or self._leaving:
                self._look()

    def _patience(self) -> float | None:
        if any(command.killed for command in self._commands.values()):
            return _AGAIN_S
        return _LOOK_S if self._commands or self._leaving else None

    def _answer(self, asked: dict[str, Any], descriptors: list[int]) -> None:
        beside: list[int] = []
        answer: dict[str, Any] = {"to": asked["number"]}
        try:
            beside = getattr(self, f"_do_{asked['do']}")(asked, descriptors) or []
        except OSError as error:
            answer |= {"errno": error.errno or errno.EIO, "error": error.strerror or str(error)}
        with contextlib.suppress(BrokenPipeError):
            send(self._channel, answer, beside)
        for descriptor in (*descriptors, *beside):
            os.close(descriptor)

    def _do_open(self, asked: dict[str, Any], _: list[int]) -> list[int]:
        return [self._mounted.tree.open(asked["path"])]

    def _do_write(self, asked: dict[str, Any], descriptors: list[int]) -> None:
        self._mounted.tree.write(asked["path"], descriptors[0], asked["mode"], asked["sha256"])

    def _do_start(self, asked: dict[str, Any], descriptors: list[int]) -> None:
        entered = self._mounted.as_root if asked["root"] else self._mounted.as_agent
        line = [*self._wrapping(asked, entered), "--", *asked["argv"]]
        started = os.fork()
        if started == 0:
            with contextlib.suppress(BaseException):
                self._run(line, entered, descriptors)
            os._exit(127)
        self._commands[started] = _Command(asked["key"])

    def _do_kill(self, asked: dict[str, Any], _: list[int]) -> None:
        for command in self._commands.values():
            if command.key == asked["key"]:
                command.killed = True

    def _wrapping(self, asked: dict[str, Any], entered: int) -> list[str]:
        home = "/root" if asked["root"] else AGENT_HOME
        given = {"PATH": _PATH, "HOME": home, "LANG": "C.UTF-8", "TMPDIR": "/tmp"} | asked["environment"]  # noqa: S108
        return [
            *(self._order.bwrap, "--userns", str(entered), "--unshare-pid", "--unshare-cgroup-try"),
            *("--die-with-parent", "--new-session", "--bind", self._mounted.root, "/", "--proc", "/proc"),
            *("--dev", "/dev", "--bind", self._mounted.memory_files, "/dev/shm", "--remount-ro", "/dev"),  # noqa: S108
            *("--cap-drop", "ALL", *(word for right in _ROOTS if asked["root"] for word in ("--cap-add", right))),
            *("--chdir", asked["workdir"] or self._order.workdir, "--clearenv"),
            *(word for name, value in given.items() for word in ("--setenv", name, value)),
        ]

    def _run(self, line: list[str], entered: int, descriptors: list[int]) -> None:
        read, written = descriptors
        os.dup2(read, 0)
        os.dup2(written, 1)
        os.dup2(written, 2)
        os.set_inheritable(entered, True)  # noqa: FBT003
        for ours in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGINT, signal.SIGXFSZ):
            signal.signal(ours, signal.SIG_DFL)
        os.umask(0o022)
        os.nice(_NICENESS)
        # A process that asks for so much at once is refused before it can be looked at.
        most = 2 * self._order.memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._order.disk_bytes, self._order.disk_bytes))
        os.execve(line[0], line, {})  # noqa: S606

    def _reap(self) -> None:
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if ended == 0:
                return
            command = self._commands.pop(ended, None)
            if command is not None:
                # Bubblewrap's outer process ends with the command, and the namespace a moment after it.
                self._leaving.append(_Leaving(command, status, self._orphans(_processes())))
            for leaving in self._leaving:
                leaving.left.discard(ended)
            for leaving in [leaving for leaving in self._leaving if not leaving.left]:
                self._leaving.remove(leaving)
                self._tell(leaving.command, leaving.status)

    def _orphans(self, found: dict[int, _Process]) -> set[int]:
        """First processes of namespaces whose command ended: each is reaped when all in its namespace are gone."""
        ours = os.getpid()
        return {number for number, process in found.items() if process.parent == ours and number not in self._commands}

    def _tell(self, command: _Command, status: int) -> None:
        found = os.waitstatus_to_exitcode(status)
        code = found if found >= 0 else 128 - found
        said = {
            "ended": command.key,
            "code": code,
            "killed": command.killed and not command.out_of_memory and code == _KILLED,
            "out_of_memory": command.out_of_memory,
        }
        with contextlib.suppress(BrokenPipeError):
            send(self._channel, said)

    def _look(self) -> None:
        """End what was to be killed, what nobody owns, and who uses most where that is too much."""
        found = _processes()
        orphans = self._orphans(found)
        for number, process in found.items():
            command = self._commands.get(process.parent)
            if number in orphans or (command is not None and command.killed):
                # Process 1 of the command's namespace: with it the kernel ends all others.
                _kill(number)
        if sum(process.resident_bytes for process in found.values()) <= self._order.memory_bytes:
            return
        used = dict.fromkeys(self._commands, 0)
        for number in found:
            owner = _owner(number, found, self._commands)
            if owner is not None:
                used[owner] += _memory_bytes(number)
        if used and sum(used.values()) > self._order.memory_bytes:
            heaviest = self._commands[max(used, key=lambda number: used[number])]
            heaviest.killed = heaviest.out_of_memory = True


def _owner(number: int, found: dict[int, _Process], commands: dict[int, _Command]) -> int | None:
    while number in found and number not in commands:
        number = found[number].parent
    return number if number in commands else None


def _kill(number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)


def _processes() -> dict[int, _Process]:
    """All of the sandbox but its first."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == "1":
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
            with open(f"/proc/{name}/statm", "rb") as file:
                resident = int(file.read().split()[1])
            found[int(name)] = _Process(parent, resident * resource.getpagesize())
    return found


def _memory_bytes(number: int) -> int:
    """What a process holds beside files, with its share of what it shares."""
    kibibytes = 0
    with contextlib.suppress(OSError), open(f"/proc/{number}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")):
                kibibytes += int(line.split()[1])
    return kibibytes << 10
