"""Which processes are ours, by /proc. Standard library alone: the keeper runs on this.

A role's process leads a session of its own and carries a mark in its environment. A process is ours if its
environment has the mark (children inherit it), or if it is in the session of a process that we recorded together
with its start time (a program may overwrite its environment). A number that was given to another process since
matches neither.
"""

import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

MARK = "ECHORL_PROCESS"
"""Environment variable: ``<supervisor's mark>.<role>-<index>.<launch>``."""
_PROC = Path("/proc")
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - where the kernel shows POSIX shared memory
_POLL_S = 0.02
_KILL_DEADLINE_S = 10.0


@dataclass(frozen=True)
class Stat:
    """One line of the process table."""

    pid: int
    state: str
    session: int
    started: int
    """Clock ticks since boot."""
    command: str


def boot_id() -> str:
    """Changes at every boot; start times are comparable within one."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def stat_of(pid: int) -> Stat | None:
    """A living process's line; None if there is none (a zombie is dead)."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The command stands in parentheses and may itself hold spaces and parentheses.
    command, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    if fields[0] in "ZX":
        return None
    return Stat(pid, fields[0], int(fields[3]), int(fields[19]), command)


def is_alive(pid: int, started: int) -> bool:
    """Whether this very process lives."""
    stat = stat_of(pid)
    return stat is not None and stat.started == started


def ours(mark: str, known: Mapping[int, int], *, strict: bool = False) -> list[Stat]:
    """Living processes with a mark that begins with ``mark``, those known, and those in a known leader's session.

    Args:
        mark: ends with a dot, so that it is no other mark's beginning.
        known: start times by pid.
        strict: leave out sessions whose leader is gone; for numbers that were noted long ago.
    """
    leaders = {pid for pid, started in known.items() if _may_lead(pid, started, strict=strict)}
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        stat = stat_of(int(entry.name))
        if stat is None:
            continue
        if known.get(stat.pid) == stat.started or stat.session in leaders or _carries(stat.pid, mark):
            found.append(stat)
    return found


def _may_lead(pid: int, started: int, *, strict: bool) -> bool:
    # A dead leader's number stays taken as long as its session has members, so soon after its death only a living
    # stranger is ruled out.
    stat = stat_of(pid)
    return not strict if stat is None else stat.started == started


def _carries(pid: int, mark: str) -> bool:
    try:
        environ = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return any(entry.startswith(f"{MARK}={mark}".encode()) for entry in environ.split(b"\0"))


def cpu_of_descendants_s(pid: int) -> float:
    """CPU seconds of a process's living descendants, and of those of theirs that they have waited for."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # proc_pid_stat(5): ppid, then utime, stime, cutime, cstime.
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    found = list(children.get(pid, ()))
    for one in found:
        found.extend(children.get(one, ()))
    return sum(ticks[one] for one in found) / os.sysconf("SC_CLK_TCK")


def send(processes: Iterable[Stat], number: signal.Signals) -> None:
    """Signal processes; those that ended meanwhile are left out."""
    for stat in processes:
        if is_alive(stat.pid, stat.started):
            try:
                os.kill(stat.pid, number)
            except (ProcessLookupError, PermissionError):
                continue


def end_all(mark: str, known: Mapping[int, int], *, grace_s: float, strict: bool = False) -> list[Stat]:
    """End all of ours: SIGTERM, after ``grace_s`` SIGKILL. Blocks; returns what it had to end, by pid."""
    found = ours(mark, known, strict=strict)
    ended = {stat.pid: stat for stat in found}
    send(found, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while found and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        found = ours(mark, known, strict=strict)
    # New children may appear while their parents are being killed.
    deadline = time.monotonic() + _KILL_DEADLINE_S
    while found and time.monotonic() < deadline:
        ended |= {stat.pid: stat for stat in found}
        send(found, signal.SIGKILL)
        time.sleep(_POLL_S)
        found = ours(mark, known, strict=strict)
    return sorted(ended.values(), key=lambda stat: stat.pid)


def shared_memory(processes: Iterable[Stat]) -> set[Path]:
    """Shared-memory segments that these processes have mapped."""
    found: set[str] = set()
    for stat in processes:
        try:
            lines = (_PROC / str(stat.pid) / "maps").read_text().splitlines()
        except OSError:
            continue
        found |= {line[line.index(_SHARED_MEMORY) :] for line in lines if _SHARED_MEMORY in line}
    return {Path(name) for name in found if not name.endswith(" (deleted)")}


def remove_unused(segments: Iterable[Path]) -> list[Path]:
    """Remove segments that no living process has mapped; returns those removed."""
    everyone = (stat_of(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    used = shared_memory(stat for stat in everyone if stat is not None)
    removed = []
    for path in sorted(set(segments) - used):
        try:
            path.unlink()
        except OSError:
            continue
        removed.append(path)
    return removed
