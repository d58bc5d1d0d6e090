"""Work beside the loop, one piece at a time: a second piece waits until the first is done."""

import sys
import threading
import time
from collections.abc import Callable

from echorl_trainer.health import Health, Phase

_LOOK_S = 0.1
"""Between two looks at whether something else has failed, and whether a sign of life is due."""
SWITCH_S = 0.0005
"""Python's own is 0.005."""


def share_lock(switch_s: float = SWITCH_S) -> None:
    """Have threads of this process that compute in Python give its lock away after ``switch_s`` seconds.

    The loop lets the lock go, and wants it back, at operations of torch in every layer, and backward passes it between
    two threads. Beside one that hashes or plans, each time may cost it a whole interval.
    """
    sys.setswitchinterval(switch_s)


class Background:
    """At most one thread at work. Its failure is the loop's at the next check (``Watch``)."""

    def __init__(self, health: Health, *, deadline_s: float) -> None:
        """``deadline_s`` bounds ``wait``."""
        self._watch, self._progress, self._deadline_s = health.watch, health.progress, deadline_s
        self._idle = threading.Event()
        self._idle.set()
        self._awaited = ""

    def start(self, name: str, work: Callable[[], None], *, awaited: str) -> None:
        """Begin ``work`` in a thread called ``name``; nothing else may be under way.

        ``awaited`` says what who waits is waiting for.
        """
        self._awaited = awaited
        self._idle.clear()

        def whole() -> None:
            work()
            self._idle.set()

        self._watch.thread(name, whole)

    def wait(self) -> float:
        """Return when nothing is under way; seconds that this took, 0 where nothing was.

        Raises:
            TimeoutError: it took longer than the deadline.
            Exception: what failed in a background thread before.
        """
        if self._idle.is_set():
            return 0.0
        began = time.monotonic()
        with self._progress.during(Phase.SAVING, self._awaited):
            while not self._idle.wait(_LOOK_S):
                self._watch.check()
                if time.monotonic() > began + self._deadline_s:
                    raise TimeoutError(f"waited {self._deadline_s:g} s for {self._awaited}")
        self._watch.check()
        return time.monotonic() - began
