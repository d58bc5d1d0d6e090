"""What a rank is doing and whether that is progress; failures of background threads.

The loop names every phase that it enters; ``/healthz`` and ``/state`` read it. Nothing here ends the process: a
failure that a background thread leaves in ``Watch`` is raised by the loop at its next ``check``.
"""

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from statistics import median
from typing import Any

from echorl_trainer.metrics import Metrics


class Phase(StrEnum):
    """What the loop is busy with."""

    STARTING = "starting"
    RESUMING = "resuming"
    PUBLISHING = "publishing"
    WAITING_BATCH = "waitingBatch"
    TRAINING = "training"
    SAVING = "saving"
    STOPPING = "stopping"


class Watch:
    """Carries the first failure of any background thread to the loop."""

    def __init__(self) -> None:
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self.failed = threading.Event()

    def fail(self, error: BaseException) -> None:
        """Leave a failure; the first one counts."""
        with self._lock:
            self._failure = self._failure or error
        self.failed.set()

    def check(self) -> None:
        """Raise what a background thread left, if anything."""
        if self._failure is not None:
            raise self._failure

    def thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Start ``work`` in a daemon thread whose failure ``check`` raises."""

        def watched() -> None:
            try:
                work()
            except BaseException as error:
                self.fail(error)

        # The context carries what every log line of this process says about its origin.
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: context.run(watched), name=name, daemon=True)
        thread.start()
        return thread


class RankProgress:
    """Where one rank stands. Written by the loop and its background threads, read by the server."""

    def __init__(self, *, step_timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step_timeout_s = step_timeout_s
        self._lock = threading.Lock()
        self._phase = Phase.STARTING
        self._waiting_for: str | None = "process group and model"
        self._entered = self._beat = clock()
        self._spent = dict.fromkeys(Phase, 0.0)
        self._steps: deque[float] = deque(maxlen=50)
        self.step = 0
        """Last trained step."""
        self.policy_version: int | None = None
        """Last published version."""
        self.committed: list[int] = []
        """Checkpoints that this rank knows to be committed, ascending."""
        self.exported: list[int] = []
        """Steps of all exports of the weights alone that were there after the newest of this process, ascending."""
        self.saving: int | None = None
        """Step whose save or acknowledgement is under way."""

    @property
    def phase(self) -> Phase:
        """What the loop is busy with."""
        return self._phase

    @contextmanager
    def during(self, phase: Phase, waiting_for: str | None = None) -> Iterator[None]:
        """Name what the loop does inside the block; the phase before it comes back after it."""
        before = (self._phase, self._waiting_for)
        self._enter(phase, waiting_for)
        yield
        if phase is Phase.TRAINING:
            self._steps.append(self._clock() - self._entered)
        self._enter(*before)

    def beat(self, phase: Phase) -> None:
        """Note a sign of life of what ``phase`` waits for; says nothing about a loop that is elsewhere."""
        with self._lock:
            if self._phase is phase:
                self._beat = self._clock()

    def commit(self, step: int) -> None:
        """Note a checkpoint that the orchestrator committed."""
        with self._lock:
            self.committed = sorted({*self.committed, step})

    def problem(self) -> str | None:
        """Why this rank makes no progress; None while it does.

        A phase may last ``max(step_timeout_s, 10 x median step)`` without a sign of life.
        """
        with self._lock:
            phase, waiting_for, silent = self._phase, self._waiting_for, self._clock() - self._beat
        limit = max(self._step_timeout_s, 10 * median(self._steps)) if self._steps else self._step_timeout_s
        if silent <= limit:
            return None
        waits = f", waiting for {waiting_for}" if waiting_for else ""
        return f"{phase}{waits}: no progress for {silent:.0f} s, at most {limit:.0f} s are accepted"

    def state(self) -> dict[str, Any]:
        """JSON for ``/state``."""
        with self._lock:
            return {
                "phase": self._phase.value,
                "seconds_in_phase": round(self._clock() - self._entered, 3),
                "waiting_for": self._waiting_for,
                "step": self.step,
                "policy_version": self.policy_version,
                "checkpoint": {
                    "committed": list(self.committed),
                    "saving": self.saving,
                    "exported": list(self.exported),
                },
            }

    def phase_seconds(self) -> dict[str, float]:
        """Seconds spent in every phase so far, the one under way included."""
        with self._lock:
            now = self._clock() - self._entered
            return {str(phase): spent + now * (phase is self._phase) for phase, spent in self._spent.items()}

    def _enter(self, phase: Phase, waiting_for: str | None) -> None:
        with self._lock:
            self._spent[self._phase] += self._clock() - self._entered
            self._phase, self._waiting_for = phase, waiting_for
            self._entered = self._beat = self._clock()


class Health:
    """What one rank's parts share: failures of its threads, where it stands, its metrics."""

    def __init__(self, *, step_timeout_s: float) -> None:
        self.watch = Watch()
        self.progress = RankProgress(step_timeout_s=step_timeout_s)
        self.metrics = Metrics(self.progress.phase_seconds)
