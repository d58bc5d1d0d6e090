"""Which processes are ours, by /proc. Standard library alone: the keeper runs on this.

A role's process leads a session of its own and carries a mark in its environment. A process is ours if its
environment has the mark (children inherit it), or if it is in the session of a process that we recorded together
with its start time (a program may overwrite its environment). A number that was given to another process since
matches neither; nor does one whose environment can be read and has no mark, unless it stands in such a session.
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
    """Changes at every boot, and from container to container: process ids and start times mean something within one."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{(_PROC / 'self/ns/pid').stat().st_ino}"


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


def ours(mark: str, starts: Mapping[int, int], *, strict: bool = False) -> list[Stat]:
    """Living processes with a mark that begins with ``mark``, those known, and those in a known leader's session.

    Args:
        mark: ends with a dot, so that it is no other mark's beginning.
        starts: start times by pid, of those that are known.
        strict: for numbers that were read from a file: a process whose environment says that it is another's is left
            out, and so is a session whose leader is gone, but for its members that are known themselves.
    """
    leaders = {pid for pid, started in starts.items() if _may_lead(pid, started, mark, strict=strict)}
    stats = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        stat = stat_of(int(entry.name))
        if stat is None:
            continue
        is_known = starts.get(stat.pid) == stat.started and not (strict and _is_anothers(stat, mark, starts))
        if is_known or stat.session in leaders or _carries(stat.pid, mark):
            stats.append(stat)
    return stats


def _may_lead(pid: int, started: int, mark: str, *, strict: bool) -> bool:
    # A dead leader's number stays taken as long as its session has members, so soon after its death only a living
    # stranger is ruled out.
    stat = stat_of(pid)
    if stat is None:
        return not strict
    return stat.started == started and not (strict and _is_anothers(stat, mark, {}))


def _is_anothers(stat: Stat, mark: str, starts: Mapping[int, int]) -> bool:
    """Whether a process with a known start time shows that it is not ours all the same."""
    if stat.session in starts and stat.session != stat.pid and stat_of(stat.session) is None:
        return False  # one that was started with variables of its own, in the session of a leader of ours that is gone
    environ = _environ(stat.pid)
    # A program that has overwritten its variables, as for a title of its own, says nothing.
    is_legible = any(entry.startswith(b"PATH=") for entry in environ)
    return is_legible and not _carries(stat.pid, mark)


def _carries(pid: int, mark: str) -> bool:
    return any(entry.startswith(f"{MARK}={mark}".encode()) for entry in _environ(pid))


def _environ(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


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
    descendants = list(children.get(pid, ()))
    for parent in descendants:
        descendants.extend(children.get(parent, ()))
    return sum(ticks[descendant] for descendant in descendants) / os.sysconf("SC_CLK_TCK")


def send(processes: Iterable[Stat], number: signal.Signals) -> None:
    """Signal processes; those that ended meanwhile are left out."""
    for stat in processes:
        if is_alive(stat.pid, stat.started):
            try:
                os.kill(stat.pid, number)
            except (ProcessLookupError, PermissionError):
                continue


def end_all(mark: str, starts: Mapping[int, int], *, grace_s: float, strict: bool = False) -> list[Stat]:
    """End all of ours: SIGTERM, after ``grace_s`` SIGKILL. Blocks; returns what it had to end, by pid."""
    living = ours(mark, starts, strict=strict)
    ended = {stat.pid: stat for stat in living}
    send(living, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while living and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        living = ours(mark, starts, strict=strict)
    # New children may appear while their parents are being killed.
    deadline = time.monotonic() + _KILL_DEADLINE_S
    while living and time.monotonic() < deadline:
        ended |= {stat.pid: stat for stat in living}
        send(living, signal.SIGKILL)
        time.sleep(_POLL_S)
        living = ours(mark, starts, strict=strict)
    return sorted(ended.values(), key=lambda stat: stat.pid)
