"""The loop of one trainer rank: pull a batch, learn, publish, report, save.

    publish v_start
      +-> batch(s) -> step -> publish v_s -> report -> hold in memory, save if asked --+
      +------------------------------------------------------------------------------+
    410 ends it: save if asked, wait for the acknowledgement

Every rank runs the same loop in lockstep; only rank 0 announces and reports, and it serves weights, alone or with
others. Publishing stops the loop for a copy to host memory alone (publish.py); on GPUs a version's probe is launched
behind the next step's first micro-batch or, where the batch is not there yet, in the wait for it. What the orchestrator
is told goes through an outbox, in order, so neither a publication nor a slow orchestrator holds a step up.
"""

import gc
import math
import time
from collections.abc import Mapping
from typing import Any

import structlog

from echorl_core.faults import fault_point
from echorl_core.jsonsafe import finite
from echorl_core.wire.batch import RankBatch, StopNotice
from echorl_core.wire.reports import StepReport
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_trainer.checkpoint import Saver
from echorl_trainer.client import BatchSource, Outbox
from echorl_trainer.exports import Exporter
from echorl_trainer.health import Health, Phase
from echorl_trainer.learner import Learner
from echorl_trainer.memory import Held, MemoryCopies, Unfinished
from echorl_trainer.profiling import Profiler
from echorl_trainer.publication import Publication
from echorl_trainer.publish import Publisher
from echorl_trainer.step import StepOutcome

log = structlog.get_logger()

FLUSH_DEADLINE_S = 30.0


class LastCheckpointLost(Exception):
    """The run's last checkpoint was abandoned."""


def step_report(attempt: int, step: int, outcome: StepOutcome, seconds: Mapping[str, float]) -> StepReport:
    """What the orchestrator learns about a step; non-finite metrics become null."""
    return StepReport(
        attempt=attempt,
        step=step,
        metrics=finite(outcome.metrics),
        gap=outcome.gap,
        trained_tokens=outcome.trained_tokens,
        packed_tokens=outcome.packed_tokens,
        seconds={**outcome.seconds, **seconds},
    )


def settle() -> None:
    """Have Python's collector pass over all that there is from now on; only once in a process.

    After a first step that is what lasts, and a device has nothing to do while the collector looks at it: half a second
    for a compiled model's 700,000 objects.
    """
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


class Trainer:
    """One rank's loop over its parts."""

    def __init__(
        self,
        learner: Learner,
        source: BatchSource,
        publisher: Publisher,
        *,
        saver: Saver,
        outbox: Outbox | None,
        profiler: Profiler,
        exporter: Exporter | None,
        health: Health,
        attempt: int,
        start_step: int,
        late_probe_from: int | None,
        memory: MemoryCopies | None = None,
        held: Held | None = None,
    ) -> None:
        """``start_step``: whose state ``learner`` holds, unless that is what was ``held`` in memory.

        ``late_probe_from``: micro-batches that a step must have for the version before it to be probed beside it; None:
        versions are probed at once. ``outbox``: on rank 0; None elsewhere. ``exporter``: on ranks that publish, if
        weights are exported.
        """
        self._learner = learner
        self._source = source
        self._publisher = publisher
        self._saver = saver
        self._profiler = profiler
        self._outbox, self._exporter = outbox, exporter
        self._progress, self._metrics = health.progress, health.metrics
        self._attempt = attempt
        self._step = start_step if held is None else held.step
        self._settled_step = self._step if held is None or held.is_saved else None
        """Of what this process began with, if it is in a checkpoint already, or will never be."""
        self._memory, self._held, self._late_probe_from = memory, held, late_probe_from
        self._report: StepReport | None = None
        self._publication: Publication | None = None
        self._checkpoint_s = 0.0
        """Seconds that the loop stood still for saves since the last report."""
        publisher.on_visible = self._visible
        learner.state.optimizer.register_step_pre_hook(self._before_optimizer)

    def train(self) -> StopNotice:
        """Train until the orchestrator says that there is nothing left; how it said so."""
        self._progress.step = self._step
        self._publish()
        if self._outbox is not None:
            with self._progress.during(Phase.STARTING, f"the orchestrator to note policy version {self._step}"):
                self._outbox.flush(math.inf)  # the link has a deadline, and the outbox fails with it
        if self._held is not None:
            self._make_up(self._held.unfinished)
        while True:
            began = time.monotonic()
            batch = self._pull()
            if isinstance(batch, StopNotice):
                self._stop(batch)
                return batch
            with self._profiler.tracing(batch.step):
                self._learn(batch, began)
            if self._late_probe_from is not None:
                settle()
            unfinished = Unfinished(self._report, save=batch.checkpoint or batch.last, last=batch.last)
            self._hold(unfinished)
            if unfinished.save:
                self._save(last=batch.last)
            if batch.last:
                self._await_last(batch.step)

    def _make_up(self, unfinished: Unfinished) -> None:
        """Do what the process before this one still had to do for the step that this one begins with."""
        if self._outbox is not None and unfinished.report is not None:
            self._outbox.report(unfinished.report)  # again, maybe: repeated reports do no harm
        if unfinished.save and self._settled_step is None:
            self._save(last=unfinished.last)
            if unfinished.last:
                self._await_last(self._step)

    def _hold(self, unfinished: Unfinished) -> None:
        """Begin to copy the state to memory, if that is due."""
        if self._memory is not None and self._memory.is_due(self._step, save=unfinished.save):
            began = time.monotonic()
            self._memory.begin(self._step, unfinished)
            self._checkpoint_s += time.monotonic() - began

    def _pull(self) -> RankBatch | StopNotice:
        with self._progress.during(Phase.WAITING_BATCH, f"the orchestrator to seal batch {self._step + 1}"):
            batch = None
            if self._publisher.is_unprobed:
                batch = self._source.look(self._step + 1)
                # Not all have one: it may come only after the announcement, and that waits for the probe.
                if not self._learner.state.ranks.agree(self._hides_a_probe(batch)):
                    self._publisher.probe()
            if batch is None:
                batch = self._source.batch(self._step + 1)
        fault_point("trainer.pulled")
        return batch

    def _hides_a_probe(self, batch: RankBatch | StopNotice | None) -> bool:
        least = self._late_probe_from
        return least is not None and isinstance(batch, RankBatch) and len(batch.micro_batches) >= least

    def _learn(self, batch: RankBatch, began: float) -> None:
        waited = time.monotonic() - began
        with self._progress.during(Phase.TRAINING):
            outcome = self._learner.runner.run(batch, beside=self._publisher.probe)
        self._step = self._progress.step = batch.step
        # A save may have to wait for the one before it, and the announcement is not to wait with it.
        publish_s = self._publish(probe=self._late_probe_from is None or batch.checkpoint or batch.last)
        seconds = {
            "wait_batch": waited,
            "publish": publish_s,
            "checkpoint": self._checkpoint_s,
            "step": time.monotonic() - began + self._checkpoint_s,
        }
        self._checkpoint_s = 0.0
        report = step_report(self._attempt, batch.step, outcome, seconds)
        self._metrics.observe(report)
        if self._outbox is not None:
            self._outbox.report(report)
            self._report = report

    def _publish(self, *, probe: bool = True) -> float:
        """Begin to publish the version that the trainer holds; seconds that this took. ``probe``: at once."""
        began = time.monotonic()
        with self._progress.during(Phase.PUBLISHING, "host memory that readers of older versions use"):
            self._publication = self._publisher.begin(self._step, probe=probe)
        if self._outbox is None:
            self._note_version(self._step)
        elif self._publication is not None:
            self._outbox.announce(self._publication)
        if self._publication is not None and self._exporter is not None:
            self._exporter.begin(self._publication)
        return time.monotonic() - began

    def _visible(self, announcement: PolicyAnnouncement, seconds: float) -> None:
        self._note_version(announcement.version)
        self._metrics.publish_bytes.inc(announcement.size_bytes)
        delta = announcement.delta
        self._metrics.publish_delta_bytes.inc(0 if delta is None else delta.size_bytes)
        self._metrics.publish_changed.set(math.nan if delta is None else delta.changed_ratio)
        self._metrics.publish_seconds.set(seconds)

    def _note_version(self, version: int) -> None:
        self._progress.policy_version = version
        self._metrics.policy_version.set(version)

    def _save(self, *, last: bool) -> None:
        began = time.monotonic()
        self._saver.begin(self._step, self._publication, last=last)
        self._checkpoint_s += time.monotonic() - began

    def _stop(self, notice: StopNotice) -> None:
        log.info("the orchestrator has no further batch", reason=notice.reason, step=notice.step)
        if notice.checkpoint and notice.step != self._step:
            raise RuntimeError(f"asked to save step {notice.step}, but this rank holds step {self._step}")
        # The step that this attempt started from stands in a checkpoint already, or is the start model.
        if notice.checkpoint and self._step not in (self._settled_step, self._saver.last_step):
            self._save(last=notice.reason == "finished")
        if self._memory is not None:
            self._memory.wait()
        self._saver.wait()
        if self._exporter is not None and notice.reason != "notice":
            self._exporter.wait()
        if notice.reason == "finished":
            self._await_last(notice.step)
        with self._progress.during(Phase.STOPPING, "the orchestrator to accept the last reports"):
            if self._outbox is not None and not self._outbox.flush(FLUSH_DEADLINE_S):
                log.warning("not every report was accepted before the end")
            if self._publication is not None:
                self._publication.result()  # the ranks that share it must not leave before it is visible

    def _await_last(self, step: int) -> None:
        """Wait until the run's last checkpoint is acknowledged.

        Raises:
            LastCheckpointLost: nothing later would make up for it; a new attempt redoes the steps since the one before.
        """
        self._saver.wait()
        if self._saver.outcomes.get(step) == "abandoned":
            raise LastCheckpointLost(f"checkpoint {step}, the run's last one, was not committed")

    def _before_optimizer(self, *_: Any) -> None:
        # torch's state-dict functions also step an optimizer without state, so the phase tells the real step.
        if self._progress.phase is Phase.TRAINING:
            fault_point("trainer.mid_step")
