"""What a rank is doing and whether that is progress; failures of background threads; metrics.

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

from prometheus_client import CollectorRegistry, Counter, Gauge

from echorl_core.wire import StepReport


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


class Progress:
    """Where one rank stands. Written by the loop and its background threads, read by the server."""

    def __init__(self, *, step_timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step_timeout_s = step_timeout_s
        self._lock = threading.Lock()
        self._phase = Phase.STARTING
        self._waiting_for: str | None = "process group and model"
        self._entered = self._beat = clock()
        self._steps: deque[float] = deque(maxlen=50)
        self.step = 0
        """Last trained step."""
        self.policy_version: int | None = None
        """Last published version."""
        self.committed: list[int] = []
        """Checkpoints that this rank knows to be committed, ascending."""
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
                "checkpoint": {"committed": list(self.committed), "saving": self.saving},
            }

    def _enter(self, phase: Phase, waiting_for: str | None) -> None:
        with self._lock:
            self._phase, self._waiting_for = phase, waiting_for
            self._entered = self._beat = self._clock()


class Metrics:
    """Prometheus metrics of one rank, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"echorl_trainer_{name}", text, labels, registry=self.registry)

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"echorl_trainer_{name}", text, labels, registry=self.registry)

        self.step = gauge("step", "Last trained step.")
        self.policy_version = gauge("policy_version", "Last published policy version.")
        self.loss = gauge("loss", "Loss of the last step.", ("component",))
        self.env_nll = gauge("env_nll_nats", "Mean NLL of environment tokens in the last step.", ("environment",))
        self.optim = gauge("optim", "Optimizer scalars of the last step: grad_norm, lr.", ("name",))
        self.logprob_gap = gauge("logprob_gap_nats", "Largest gap of engine and trainer logprobs in the last step.")
        self.trained_tokens = counter("trained_tokens_total", "Tokens with a weight in any component, all ranks.")
        self.packed_tokens = counter("packed_tokens_total", "Tokens that went through the model, all ranks.")
        self.seconds = counter("seconds_total", "Wall seconds by part of the loop.", ("part",))
        self.checkpoints = counter("checkpoints_total", "Saves of this rank by how they ended.", ("state",))
        self.checkpoint_seconds = gauge("checkpoint_seconds", "Last save, from its start to the last file's sync.")
        self.publish_bytes = counter("publish_bytes_total", "Bytes of published weights.")
        self.publish_seconds = gauge("publish_seconds", "Last publish, gather and probe included.")

    def observe(self, report: StepReport) -> None:
        """Take over the values of one step; a null value leaves its gauge as it was."""
        self.step.set(report.step)
        self.trained_tokens.inc(report.trained_tokens)
        self.packed_tokens.inc(report.packed_tokens)
        for part, seconds in report.seconds.items():
            self.seconds.labels(part).inc(seconds)
        by_prefix = {"loss": self.loss, "env_nll": self.env_nll, "optim": self.optim}
        for name, value in report.metrics.items():
            prefix, _, rest = name.partition("/")
            if value is not None and rest and prefix in by_prefix:
                by_prefix[prefix].labels(rest).set(value)
        if report.gap.max_abs is not None:
            self.logprob_gap.set(report.gap.max_abs)


class Health:
    """What one rank's parts share: failures of its threads, where it stands, its metrics."""

    def __init__(self, *, step_timeout_s: float) -> None:
        self.watch = Watch()
        self.progress = Progress(step_timeout_s=step_timeout_s)
        self.metrics = Metrics()
