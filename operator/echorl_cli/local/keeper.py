"""Ends a supervisor's processes when the supervisor is gone, however it went.

``python -m echorl_cli.local.keeper MARK GRACE_S`` holds the reading end of a pipe as its standard input. Lines
``add PID STARTED`` and ``drop PID`` say which sessions there are; the pipe's end says that the supervisor is gone.
"""

import signal
import sys
from collections.abc import Iterable

from echorl_cli.local.proctable import end_all


def keep(lines: Iterable[str], mark: str, grace_s: float) -> None:
    """Follow ``lines`` to their end, then end what is left."""
    sessions: dict[int, int] = {}
    for line in lines:
        match line.split():
            case ["add", pid, started]:
                sessions[int(pid)] = int(started)
            case ["drop", pid]:
                sessions.pop(int(pid), None)
            case _:  # the supervisor died while it wrote
                continue
    end_all(mark, sessions, grace_s=grace_s)


if __name__ == "__main__":
    # Ctrl-C and a terminal's end reach this process too; it must outlive the supervisor.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    keep(sys.stdin, sys.argv[1], float(sys.argv[2]))
