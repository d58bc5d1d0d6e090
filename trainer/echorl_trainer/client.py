"""The trainer's side of the orchestrator's HTTP server: patient calls, batches, and an outbox that keeps order.

    loop thread      pull(step) ------ GET  /trainer/batch (long poll)
    outbox thread    announcements, step reports, in order
    saver thread     POST /trainer/parts every second (checkpoint.py)

An orchestrator that is down is waited for with back-off; one that says nothing for ``deadline_s`` ends the role.
"""

import http.client
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import msgspec
import structlog

from echorl_core.arrays import unpack
from echorl_core.faults import fault_point
from echorl_core.wire.batch import WIRE_VERSION, RankBatch, StopNotice
from echorl_core.wire.reports import StepReport
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_trainer.health import Watch

log = structlog.get_logger()

LONG_POLL_S = 20.0
CALL_TIMEOUT_S = 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
"""Between two tries. The whole gang stands still until every rank has noticed that its orchestrator is back."""
REPEAT_ANNOUNCEMENT_S = 15.0


class Unreachable(Exception):
    """One call got no usable answer; worth another try."""


class OrchestratorLost(Exception):
    """The orchestrator answered nothing within the deadline."""


class Fenced(Exception):
    """The orchestrator belongs to another run or attempt: this process is out of date."""


class Refused(Exception):
    """The orchestrator does not accept what was sent: a bug on one of the two sides."""


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


@dataclass(frozen=True)
class HttpAnswer:
    """Status and body of a response that was read to its end."""

    status: int
    body: bytes


class Link:
    """Calls one orchestrator. Thread-safe: every call has a connection of its own."""

    def __init__(self, url: str, headers: Mapping[str, str], *, deadline_s: float, watch: Watch) -> None:
        """A failure in ``watch`` ends every wait."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"orchestrator_url: found {url!r}, accepted is http://host:port")
        self._host, self._port, self._base = parts.hostname, parts.port or 80, parts.path.rstrip("/")
        self._headers = dict(headers)
        self._deadline_s = deadline_s
        self._watch = watch
        self._last_answer = time.monotonic()
        self.failures = 0
        """Calls without a usable answer so far."""

    def once(
        self, method: str, path: str, body: bytes | None = None, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> HttpAnswer:
        """Try the call once.

        Raises:
            Unreachable: no connection, no whole answer within ``timeout_s``, or a status from 500.
            Fenced: status 409.
        """
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            connection.request(method, self._base + path, body, headers)
            response = connection.getresponse()
            answer = HttpAnswer(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if answer.status >= 500:
            raise Unreachable(f"status {answer.status}: {_excerpt(answer)}")
        self._last_answer = time.monotonic()
        if answer.status == 409:
            raise Fenced(f"{method} {path}: {_excerpt(answer)}")
        return answer

    def patiently(
        self, method: str, path: str, body: bytes | None = None, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> HttpAnswer:
        """Try until there is an answer.

        Raises:
            OrchestratorLost: no call of this link was answered for ``deadline_s`` since this one began.
            Fenced: status 409.
        """
        began, pause = time.monotonic(), FIRST_PAUSE_S
        while True:
            self._watch.check()
            try:
                return self.once(method, path, body, timeout_s=timeout_s)
            except Unreachable as error:
                self.failures += 1
                silent = time.monotonic() - max(began, self._last_answer)
                if silent > self._deadline_s:
                    raise OrchestratorLost(
                        f"{method} {path}: no answer from {self._host}:{self._port} for {silent:.0f} s ({error})"
                    ) from error
                if pause == FIRST_PAUSE_S:
                    log.warning("orchestrator unreachable, trying again", call=f"{method} {path}", error=str(error))
            self._watch.failed.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def post(self, path: str, message: msgspec.Struct) -> bytes:
        """Send a JSON message until it is accepted; the answer's body.

        Raises:
            Refused: any status but 200.
        """
        answer = self.patiently("POST", path, msgspec.json.encode(message))
        if answer.status != 200:
            raise Refused(f"POST {path}: status {answer.status}: {_excerpt(answer)}")
        return answer.body


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
            time.sleep(max(0.0, FIRST_PAUSE_S - (time.monotonic() - asked)))

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
            raise Refused(f"GET {path}: status {answer.status}: {_excerpt(answer)}")
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


def _excerpt(answer: HttpAnswer) -> str:
    return answer.body[:500].decode(errors="replace")
