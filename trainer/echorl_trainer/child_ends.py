"""The wait of a pod's process 1 for its children, which a signal ends whichever thread the kernel gives it to.

A signal to a process interrupts any one of its threads, and Python runs its handler in the main thread, when that comes
back from what it waits in: a ``waitpid`` beside other threads comes back for a child alone.
"""

import os
import select
import signal


class ChildEnds:
    """Ends of children, one at a time; Python's signal handlers run at once while one is waited for."""

    def __init__(self) -> None:
        """In the main thread; takes the process's handler of SIGCHLD and its wakeup descriptor for good."""
        self._woken, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Every signal with a handler writes here, from whichever thread it came to.
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def wait(self) -> tuple[int, int]:
        """The next child that has ended: its process id and status, as ``os.waitpid``.

        Raises:
            ChildProcessError: there is none.
        """
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid:
                return pid, status
            select.select([self._woken], [], [])
            os.read(self._woken, 4096)
