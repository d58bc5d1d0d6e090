"""The trainer's side of the orchestrator's HTTP server: patient calls, batches, and an outbox that keeps order.

    loop thread      pull(step) ------ GET  /trainer/batch (long poll)
    outbox thread    announcements, step reports, in order
    saver thread     POST /trainer/parts every second (checkpoint.py)

An orchestrator that is down is waited for with back-off; one that says nothing for ``deadline_s`` ends the role.
"""

import queue
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from echorl_core.arrays import unpack
from echorl_core.faults import fault_point
from echorl_core.wire.batch import WIRE_VERSION, RankBatch, StopNotice
from echorl_core.wire.reports import StepReport
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_trainer.health import Watch
from echorl_trainer.link import CALL_TIMEOUT_S, Fenced, HttpAnswer, Link, Refused, Unreachable, excerpt

LONG_POLL_S, SHORTEST_POLL_S = 20.0, 0.1
REPEAT_ANNOUNCEMENT_S = 15.0


class WrongBatch(Exception):
    """A batch that this rank must not train."""


class BatchSource(Protocol):
    """Where a rank's batches come from."""

    def batch(self, step: int) -> RankBatch | StopNotice:
        """The batch of ``step`` for this rank, or why there is none and never will be."""
        ...

    def look(self, step: int) -> RankBatch | StopNotice | None:
        """The same if it is there, without waiting for it; None: it is not, or nobody answered."""
        ...


class Pending(Protocol):
    """A policy version that is being published."""

    def result(self) -> PolicyAnnouncement:
        """Wait for its end; what to announce. Raises what kept it from being published."""
        ...


class Outbox:
    """Rank 0's announcements and step reports, posted in order by a thread of its own."""

    def __init__(self, link: Link, watch: Watch) -> None:
        self._link = link
        self._watch = watch
        self._queue: queue.Queue[PolicyAnnouncement | Pending | StepReport] = queue.Queue()
        self._announced: PolicyAnnouncement | None = None
        self._announced_at = 0.0
        self._failures = 0
        watch.thread("outbox", self._send)

    def announce(self, version: PolicyAnnouncement | Pending) -> None:
        """Queue a policy version; what is queued later waits for its publication, too."""
        self._queue.put(version)

    def report(self, report: StepReport) -> None:
        """Queue what came out of a step."""
        self._queue.put(report)

    def remind(self) -> None:
        """Announce the newest version again after a lost call or a while.

        An orchestrator that restarted within the attempt learns so which version there is; to another one it
        says nothing new.
        """
        due = time.monotonic() - self._announced_at > REPEAT_ANNOUNCEMENT_S or self._link.failures > self._failures
        if self._announced is not None and due and self._queue.unfinished_tasks == 0:
            self.announce(self._announced)

    def flush(self, deadline_s: float) -> bool:
        """Wait until everything queued was accepted; False if ``deadline_s`` ran out first."""
        until = time.monotonic() + deadline_s
        with self._queue.all_tasks_done:
            while self._queue.unfinished_tasks:
                self._watch.check()
                if (left := until - time.monotonic()) <= 0:
                    return False
                self._queue.all_tasks_done.wait(min(left, 0.5))
        return True

    def _send(self) -> None:
        while True:
            message = self._queue.get()
            if isinstance(message, StepReport):
                self._link.post("/trainer/step", message)
                fault_point("trainer.reported")
            else:
                announced = message if isinstance(message, PolicyAnnouncement) else message.result()
                self._announced, self._announced_at, self._failures = announced, time.monotonic(), self._link.failures
                self._link.post("/trainer/policy", announced)
            self._queue.task_done()


class OrchestratorBatches:
    """Batches of one rank, pulled from the orchestrator."""

    def __init__(
        self,
        link: Link,
        *,
        run_uid: str,
        attempt: int,
        rank: int,
        num_ranks: int,
        context: int = 1,
        idle: Callable[[], None],
    ) -> None:
        """``idle`` is called whenever the orchestrator answered that the batch is not sealed yet.

        ``context``: consecutive ranks that are given the same batch, which is not told by rank but by such group.
        """
        self._link = link
        self._run_uid, self._attempt = run_uid, attempt
        self._rank, self._place, self._places = rank, rank // context, num_ranks // context
        self._idle = idle

    def batch(self, step: int) -> RankBatch | StopNotice:
        """Wait for the batch of ``step``, as long as the orchestrator lives.

        Raises:
            Fenced, OrchestratorLost: from ``Link``.
            WrongBatch: the answer is not this rank's batch of this step.
        """
        path = self._path(step, LONG_POLL_S)
        while True:
            asked = time.monotonic()
            answer = self._link.patiently("GET", path, timeout_s=LONG_POLL_S + CALL_TIMEOUT_S)
            found = self._read(answer, path, step)
            if found is not None:
                return found
            self._idle()
            # A server that does not hold the request open must not be asked in a tight loop.
            time.sleep(max(0.0, SHORTEST_POLL_S - (time.monotonic() - asked)))

    def look(self, step: int) -> RankBatch | StopNotice | None:
        """The batch of ``step`` if it is sealed; None: it is not, or the orchestrator did not answer.

        Raises:
            Fenced, WrongBatch: as ``batch``.
        """
        path = self._path(step, 0)
        try:
            return self._read(self._link.once("GET", path), path, step)
        except Unreachable:
            return None

    def _path(self, step: int, wait_s: float) -> str:
        return f"/trainer/batch?step={step}&rank={self._rank}&wait={wait_s:g}"

    def _read(self, answer: HttpAnswer, path: str, step: int) -> RankBatch | StopNotice | None:
        if answer.status == 200:
            batch = self._decoded(answer.body)
            if (batch.run_uid, batch.attempt) != (self._run_uid, self._attempt):
                raise Fenced(
                    f"batch of run {batch.run_uid!r}, attempt {batch.attempt}; "
                    f"this is run {self._run_uid!r}, attempt {self._attempt}"
                )
            check_batch(batch, run_uid=self._run_uid, step=step, rank=self._place, num_ranks=self._places)
            return batch
        if answer.status == 410:
            return msgspec.json.decode(answer.body, type=StopNotice)
        if answer.status != 204:
            raise Refused(f"GET {path}: status {answer.status}: {excerpt(answer)}")
        return None

    @staticmethod
    def _decoded(body: bytes) -> RankBatch:
        try:
            return unpack(body, RankBatch)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise WrongBatch(f"batch of {len(body)} bytes cannot be decoded: {error}") from error


def check_batch(batch: RankBatch, *, run_uid: str, step: int, rank: int, num_ranks: int) -> None:
    """Refuse a batch that is not this one.

    Raises:
        WrongBatch: names the field, what was found and what is accepted.
    """
    accepted = {"wire_version": WIRE_VERSION, "run_uid": run_uid, "step": step, "rank": rank, "num_ranks": num_ranks}
    for field, value in accepted.items():
        if (found := getattr(batch, field)) != value:
            raise WrongBatch(f"batch of step {step}, rank {rank}: {field} is {found!r}, accepted is {value!r}")
