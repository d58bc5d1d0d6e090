"""Commits checkpoints: gathers the ranks' parts, adds the orchestrator's own, writes the manifest last.

    rank r --PartsReport(step)--> take() --all ranks are in--> commit (thread): own part, manifest, retention, release

A step is *waiting* until it is *committed* or *abandoned* (a rank could not save, a reported file is not there, or the
deadline passed). An abandoned step has no manifest, so the checkpoint before it and its batches stay. After a restart
the ranks repeat their reports; what is on disk already counts.
"""

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import structlog

from echorl_core import checkpoints
from echorl_core.checkpoints import MANIFEST_NAME, CheckpointManifest, Committed, part_of, to_keep
from echorl_core.config import CheckpointConfig
from echorl_core.faults import fault_point
from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory, sync_folder, write_file
from echorl_core.wire.reports import Part, PartsReply, PartsReport
from echorl_orchestrator.attempt.presence import check_there
from echorl_orchestrator.batches.batch_store import BatchStore
from echorl_orchestrator.batches.sealing import read_state

log = structlog.get_logger()

State = Literal["waiting", "committed", "abandoned"]
ANSWER_S = 1.0
"""Longest time until a rank that has reported parts is answered: it saves nothing anew before it is."""


@dataclass
class _Pending:
    deadline: float
    """When the parts are due, on the event loop's clock."""
    reports: dict[int, PartsReport] = field(default_factory=dict)
    given_up: str | None = None
    """Why no further part will come."""


class Committer:
    """Commits the checkpoints of one attempt once all their parts are written, or abandons them."""

    def __init__(
        self,
        run: RunDirectory,
        identity: RunIdentity,
        store: BatchStore,
        config: CheckpointConfig,
        *,
        num_ranks: int,
        part_deadline_s: float,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_change`` is called after every commit and every abandonment."""
        self._run, self._identity, self._store, self._config = run, identity, store, config
        self._num_ranks, self._part_deadline_s = num_ranks, part_deadline_s
        self._on_change = on_change
        self._pending: dict[int, _Pending] = {}
        self._settled: dict[int, State] = {}
        self._answered: dict[int, set[int]] = {}
        self._owed: dict[int, set[int]] = {}
        """Ranks whose report was taken when the checkpoint was not settled yet."""
        self._wake, self._heard = asyncio.Event(), asyncio.Event()
        self._changed = asyncio.Condition()
        self.newest: CheckpointManifest | None = None
        """The manifest of the newest checkpoint that counts for this attempt."""
        self.committed_steps: list[int] = []
        """Ascending; what is kept on disk."""
        self.abandoned = 0
        """Checkpoints without a manifest because a part failed or never came."""
        self.reason: str | None = None
        """Why the latest abandoned checkpoint was."""
        self.lost_step: int | None = None
        """Step of the newest abandoned checkpoint, if none was committed since."""
        self._rests: dict[int, set[int]] = {}
        """Ranks that may still write, by step of an abandoned checkpoint whose files are there."""

    def load(self, resume_step: int) -> None:
        """Find what this attempt committed before the orchestrator restarted, and finish retention. Blocking."""
        ours = [saved for saved in checkpoints.committed(self._run)[0] if saved.manifest.run_uid == self._identity.uid]
        own = [saved for saved in ours if saved.manifest.attempt == self._identity.attempt]
        self._settled.update({saved.step: "committed" for saved in own})
        counted = [saved for saved in ours if saved.step == resume_step or saved in own]
        if counted:
            self.newest = counted[-1].manifest
            self.committed_steps = [saved.step for saved in ours if saved.step <= counted[-1].step]
        if own:
            self._tidy(own[-1].step)

    def adopt(self, config: CheckpointConfig) -> None:
        """Keep checkpoints by this rule from the next commit on."""
        self._config = config

    def expect(self, step: int) -> None:
        """The trainer holds version ``step``, a checkpoint step: its parts are due within the deadline. Idempotent."""
        if step not in self._settled and step not in self._pending:
            self._pending[step] = _Pending(deadline=_now() + self._part_deadline_s)
            self._wake.set()

    async def take(self, report: PartsReport) -> PartsReply:
        """As ``report``; what it answers waits a moment for the checkpoint to be settled."""
        reply = self.report(report)
        if reply.state != "waiting":
            return reply
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self.settled(report.step)
            return self.report(report)
        return reply

    def report(self, report: PartsReport) -> PartsReply:
        """Take one rank's parts; the answer says where the checkpoint stands."""
        state = self.state(report.step)
        if state == "waiting":
            self.expect(report.step)
            self._pending[report.step].reports[report.rank] = report
            self._owed.setdefault(report.step, set()).add(report.rank)
            self._wake.set()
        else:
            self._answered.setdefault(report.step, set()).add(report.rank)
            self._heard.set()
        if (writing := self._rests.get(report.step)) is not None:
            writing.discard(report.rank)
            self._wake.set()
        return PartsReply(state=state)

    async def restarted(self, step: int) -> State:
        """The gang goes on in place from ``step``, and reports parts of what is not whole anew; where ``step`` stands.

        All of its processes before have ended. Checkpoints before ``step`` that are not whole will never be.
        """
        for saved, pending in sorted(self._pending.items()):
            if len(pending.reports) >= self._num_ranks:
                await self.settled(saved)
                continue
            pending.reports.clear()
            pending.deadline = _now() + self._part_deadline_s
            if saved < step:
                pending.given_up = f"its ranks were started again in place beyond it, at step {step}"
        self._wake.set()
        return self.state(step)

    def state(self, step: int) -> State:
        """Where the checkpoint of ``step`` stands."""
        return self._settled.get(step, "waiting")

    @property
    def waiting(self) -> dict[int, int]:
        """Ranks that have reported, by step that is not settled."""
        return {step: len(pending.reports) for step, pending in sorted(self._pending.items())}

    async def settled(self, step: int) -> State:
        """Wait until the checkpoint of ``step`` is committed or abandoned (bounded by the part deadline)."""
        async with self._changed:
            await self._changed.wait_for(lambda: step in self._settled)
        return self._settled[step]

    async def acknowledged(self, step: int, deadline_s: float) -> bool:
        """Wait until every rank has heard what became of the checkpoint of ``step``; False at the deadline."""
        try:
            async with asyncio.timeout(deadline_s):
                while len(self._answered.get(step, ())) < self._num_ranks:
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            return False
        return True

    async def heard(self, deadline_s: float) -> bool:
        """Wait until every rank that has reported parts has heard what became of them; False at the deadline."""
        try:
            async with asyncio.timeout(deadline_s):
                while any(ranks - self._answered.get(step, set()) for step, ranks in self._owed.items()):
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Commit and abandon as reports come in, until cancelled."""
        while True:
            now = _now()
            for step, pending in sorted(self._pending.items()):
                await self._look_at(step, pending, now)
            await self._clear_rests()
            left = min((pending.deadline - now for pending in self._pending.values()), default=None)
            try:
                async with asyncio.timeout(None if left is None else max(left, 0.0) + 0.01):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    async def _look_at(self, step: int, pending: _Pending, now: float) -> None:
        if pending.given_up is not None:
            await self._settle(step, "abandoned", pending.given_up)
            return
        failed = next((report for report in pending.reports.values() if report.error is not None), None)
        if failed is not None:
            await self._settle(step, "abandoned", f"could not save: {failed.error}")
        elif len(pending.reports) >= self._num_ranks:
            problem = await asyncio.to_thread(self._commit, step, dict(pending.reports))
            await self._settle(step, "committed" if problem is None else "abandoned", problem)
        elif now >= pending.deadline:
            missing = sorted(set(range(self._num_ranks)) - set(pending.reports))
            await self._settle(step, "abandoned", f"no parts of ranks {missing} within {self._part_deadline_s:g} s")

    async def _settle(self, step: int, state: State, reason: str | None) -> None:
        settled = self._pending.pop(step)
        if state == "abandoned":
            self.abandoned += 1
            self.reason, self.lost_step = f"checkpoint {step}: {reason}", step
            writing = set() if settled.given_up is not None else set(range(self._num_ranks)) - set(settled.reports)
            self._rests[step] = writing
            log.warning("checkpoint abandoned", step=step, reason=reason)
        else:
            self.lost_step = None
            log.info("checkpoint committed", step=step, kept=self.committed_steps)
        async with self._changed:
            self._settled[step] = state
            self._changed.notify_all()
        self._on_change()

    async def _clear_rests(self) -> None:
        """Remove what ranks wrote of abandoned checkpoints: on a full volume the next one may need its room."""
        for step in [step for step, writing in self._rests.items() if not writing]:
            del self._rests[step]
            folder = self._run.checkpoint(step) / f"attempt_{self._identity.attempt}"
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _commit(self, step: int, reports: dict[int, PartsReport]) -> str | None:
        """Write the manifest; returns why not, or None.

        Raises:
            RunFailure: the run directory is gone.
        """
        check_there(self._run)
        folder = self._run.checkpoint(step)
        parts = [part for rank in sorted(reports) for part in reports[rank].parts]
        if problem := _missing(folder, parts):
            return problem
        try:
            self.newest = self._write(step, folder, parts)
        except OSError as error:
            return f"the manifest could not be written: {error}"
        try:
            self._tidy(step)
        except OSError as error:
            # What is committed stays so; the next commit tidies up behind this one too.
            log.warning("older checkpoints and batches stay for now", step=step, error=str(error))
        return None

    def _write(self, step: int, folder: Path, parts: list[Part]) -> CheckpointManifest:
        own = self._own_part(step)
        manifest = CheckpointManifest(
            run_uid=self._identity.uid,
            attempt=self._identity.attempt,
            step=step,
            policy_version=step,
            num_ranks=self._num_ranks,
            committed_at=datetime.now(UTC).isoformat(timespec="seconds"),
            history=read_state(own.read_bytes()).history,
            parts=[*parts, part_of(folder, own, "orchestrator", 0)],
        )
        fault_point("orchestrator.before_manifest")
        checkpoints.write_manifest(folder, manifest)
        fault_point("orchestrator.after_manifest")
        return manifest

    def _own_part(self, step: int) -> Path:
        """The orchestrator's state as of ``step``, copied from the sealed batch unless a predecessor did."""
        path = self._run.checkpoint(step) / f"attempt_{self._identity.attempt}" / "orchestrator" / "state.bin"
        if not path.exists():
            write_file(path, self._store.state(step), within=self._run.root)
        return path

    def _tidy(self, step: int) -> None:
        """Retention among the checkpoints up to ``step``, which is committed; batches up to it are released.

        Later checkpoints (of a lineage that this attempt went back behind) are left alone.
        """
        committed = [checkpoint for checkpoint in checkpoints.committed(self._run)[0] if checkpoint.step <= step]
        kept = to_keep([checkpoint.step for checkpoint in committed], self._config.keep_last, self._config.keep_every)
        for checkpoint in committed:
            if checkpoint.step not in kept:
                _remove(checkpoint)
        whole = {checkpoint.step for checkpoint in committed}
        for other, folder in self._run.checkpoint_steps():
            if other < step and other not in whole and not (folder / MANIFEST_NAME).exists():
                shutil.rmtree(folder, ignore_errors=True)
        self._store.release(step)
        self.committed_steps = sorted(kept)


def _now() -> float:
    """The clock that waits are measured by."""
    return asyncio.get_running_loop().time()


def _missing(folder: Path, parts: list[Part]) -> str | None:
    """Which reported file is not as reported; sizes only, the ranks hashed what they wrote."""
    for part in parts:
        path = folder / part.file
        try:
            whole = path.resolve().is_relative_to(folder.resolve()) and path.stat().st_size == part.size
        except (OSError, ValueError):
            whole = False  # missing, or a name that no file has
        if not whole:
            return f"rank {part.rank}: {path} is not the file of {part.size} bytes that was reported"
    return None


def _remove(checkpoint: Committed) -> None:
    # The manifest goes first: half a checkpoint must not count as one.
    (checkpoint.folder / MANIFEST_NAME).unlink(missing_ok=True)
    sync_folder(checkpoint.folder)
    shutil.rmtree(checkpoint.folder, ignore_errors=True)
