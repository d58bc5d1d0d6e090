"""Processes below an orchestrator, by what they are, and those of them that are still there."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from echorl_testing.sandboxes.processes import descendants

KINDS = ("agent", "grader", "script", "sandbox", "worker", "orchestrator")
"""What is killed: an agent's program; a run of tests; a script of ours in either sandbox; a sandbox's own process; an
environment's worker; the orchestrator."""
_PROGRAMS = (
    ("agent", "scripted_agent.py"),
    ("grader", "echorl_report.py"),
    ("script", "/bin/sh"),
    ("sandbox", "echorl_orchestrator.sandboxes.process.holder"),
    ("worker", "echorl_orchestrator.workers.process"),
)


@dataclass(frozen=True)
class Process:
    """One of this machine, whose number no other one is taken for."""

    pid: int
    started: int
    """In ticks since the machine was."""


def below(orchestrator: int) -> dict[Process, str]:
    """Its descendants, by kind; empty for those that are of none."""
    return {process: _kind(process.pid) for pid in descendants(orchestrator) if (process := of(pid)) is not None}


def of(pid: int) -> Process | None:
    """The process of a number, unless it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else Process(pid, int(fields[19]))


def lives(process: Process) -> bool:
    """Whether it has not ended."""
    return of(process.pid) == process


def kill(process: Process) -> bool:
    """SIGKILL it, if it lives."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not lives(process):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def _kind(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    # Bubblewrap has the words of what it starts in its own line, after its own name.
    if words[0].endswith("bwrap"):
        return ""
    return next((kind for kind, program in _PROGRAMS if any(program in word for word in words[:5])), "")
