"""Processes below this one, seen through /proc."""

import os
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path

_GRACE_S = 2.0
_POLL_S = 0.02


def parent_of(pid: int) -> int | None:
    """Process id of the parent; None when there is no such process."""
    try:
        # The command's name, in brackets, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[1])


def start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot, so that a reused process id is told apart; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def descendants(pid: int) -> list[int]:
    """Living children of ``pid``, their children, and so on."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := parent_of(int(entry.name))) is not None:
            children[parent].append(int(entry.name))
    pids, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        pids += below
        todo += below
    return pids


def _signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _is_resource_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def end_process_tree(code: int) -> None:
    """End every process below this one, then this one with ``code``; never returns. Nothing is flushed but stderr.

    Python's resource trackers are left: they end by themselves after the last process, and remove its shared memory.
    """
    before = [pid for pid in descendants(os.getpid()) if not _is_resource_tracker(pid)]
    _signal_all(before, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline and any(parent_of(pid) is not None for pid in before):
        time.sleep(_POLL_S)
    # A child that was killed leaves its own children to another parent, so those known from before are named as well.
    later = [pid for pid in descendants(os.getpid()) if not _is_resource_tracker(pid)]
    _signal_all([*before, *later], signal.SIGKILL)
    sys.stderr.flush()
    os._exit(code)
