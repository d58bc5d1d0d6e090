"""Named points where a test may end or disturb a process, to prove that a run survives it there.

``ECHORL_FAULTS`` holds ``point[@count][=action][!marker]`` entries, comma separated. Action is ``kill`` (SIGKILL, the
default), ``raise``, or ``hold``, whose marker is a FIFO: the point waits until somebody opens that to write. With
``@3`` the third passage counts. With a marker path the other faults happen once: the file is created before it, and a
point whose marker exists does nothing. Unset in production.
"""

import os
import signal
from collections import Counter
from pathlib import Path

from echorl_core.names import ENV_FAULTS

_passages: Counter[str] = Counter()


class InjectedFault(RuntimeError):
    """Raised by a point whose action is ``raise``."""


def fault_point(name: str) -> None:
    """Pass the point ``name``; does nothing unless the environment names it."""
    configured = os.environ.get(ENV_FAULTS)
    if not configured:
        return
    for entry in configured.split(","):
        rest, _, marker = entry.partition("!")
        rest, _, action = rest.partition("=")
        point, _, count = rest.partition("@")
        if point != name:
            continue
        _passages[name] += 1
        if _passages[name] != int(count or 1):
            continue
        if action == "hold":
            Path(marker).read_bytes()
            continue
        if marker and Path(marker).exists():
            continue
        if marker:
            Path(marker).touch()
        if action == "raise":
            raise InjectedFault(name)
        os.kill(os.getpid(), signal.SIGKILL)
