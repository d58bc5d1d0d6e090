"""Saves and restores a rank's part of a checkpoint; the orchestrator commits it.

    RUN/checkpoints/step_S/attempt_N/trainer/    torch.distributed.checkpoint, readable at another number of ranks
    RUN/checkpoints/step_S/attempt_N/weights/    the same weights in Hugging Face form, from the ranks that publish

Where an adapter trains, the state is the adapter's, and ``weights`` comes with the run's last checkpoint alone:

    RUN/checkpoints/step_S/attempt_N/adapter/    the adapter in PEFT's form, from rank 0
    RUN/checkpoints/step_S/attempt_N/weights/    the model with the adapter merged

The loop stops only while the state's copy to host memory is begun (staging.py), or, where there is no room for that,
while the rank's shards are written. Then a thread per save writes, syncs, hashes and reports the rank's files until the
orchestrator says ``committed`` or ``abandoned``; one save is under way at a time. A save that fails is reported and
costs that checkpoint, never the run.
"""

import shutil
import time
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
import structlog
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from echorl_core.checkpoints import part_of
from echorl_core.faults import fault_point
from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory, sync_file, sync_folder
from echorl_core.wire.reports import Part, PartsReply, PartsReport
from echorl_trainer.background import Background
from echorl_trainer.health import Health, Phase
from echorl_trainer.link import Link
from echorl_trainer.merge import Unmergeable, merge
from echorl_trainer.publication import Publication
from echorl_trainer.shard_writer import ShardWriter
from echorl_trainer.staging import HostCopies
from echorl_trainer.state import TRAINER_FOLDER, TrainState, reason
from echorl_trainer.weights import write_version

log = structlog.get_logger()

REPORT_PAUSE_S = 0.05
"""Between two reports of the same parts: the orchestrator answers once the checkpoint is settled, or after a second."""
WEIGHTS_FOLDER = "weights"
ADAPTER_FOLDER = "adapter"


@dataclass(frozen=True)
class SaveTarget:
    """Where this process's saves go, and whom they are reported to."""

    run: RunDirectory
    identity: RunIdentity
    model_path: Path
    link: Link
    replacements: int = 0
    """In how many restarts in place another pod took the place of a lost one, which may still write."""

    def folder(self, step: int) -> Path:
        """This attempt's folder of a checkpoint; since a pod was lost, one in it that the lost pod does not know."""
        folder = self.run.checkpoint(step) / f"attempt_{self.identity.attempt}"
        return folder / f"replaced_{self.replacements}" if self.replacements else folder


class Saver:
    """Saves in the background, one at a time."""

    def __init__(
        self,
        state: TrainState,
        target: SaveTarget,
        *,
        deadline_s: float,
        health: Health,
        asynchronous: bool = True,
    ) -> None:
        """``deadline_s`` bounds a write, and the wait for an acknowledgement. Collective.

        ``asynchronous``: whether shards are written beside the loop, from a copy in host memory.
        """
        self._state = state
        self._target = target
        self._deadline_s = deadline_s
        self._watch, self._progress, self._metrics = health.watch, health.progress, health.metrics
        # Collectives of a save run beside those of training, so they need a group of their own; on the default
        # group they abort or hang.
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=deadline_s))
        self._copies = HostCopies(state.ranks.device) if asynchronous else None
        if self._copies is not None:
            guard = self._copies.guard
            state.optimizer.register_step_pre_hook(lambda *_: guard())
        self._background = Background(health, deadline_s=2 * deadline_s)
        self.last_step: int | None = None
        """Step of the newest save that was begun."""
        self.last_seconds = 0.0
        """How long the newest save took from its beginning until it was acknowledged; 0: none was."""
        self.outcomes: dict[int, Literal["committed", "abandoned"]] = {}
        """How acknowledged saves of this process ended, by step."""

    def begin(self, step: int, published: Publication | None, *, last: bool = False) -> None:
        """Start saving the state after ``step``; collective. Returns when the state may change.

        ``published``: the version of that step, or this rank's part; without it nothing is saved for people. Should it
        turn out that it cannot be published, this save does not come to pass. ``last``: of the run.
        """
        self.wait()
        if published is not None:
            published.snapshot.use()
        began = time.monotonic()
        self.last_step = self._progress.saving = step
        upload = self._taken(step)
        part = "write" if self._copies is None else "copy"
        self._metrics.checkpoint_stall_seconds.labels(part).inc(time.monotonic() - began)
        self._background.start(
            f"save-{step}",
            lambda: self._finish(step, upload, published, last, began),
            awaited=f"the orchestrator to acknowledge checkpoint {step}",
        )

    def wait(self) -> None:
        """Return when no save is under way: the last one is acknowledged.

        Raises:
            TimeoutError: it took longer than the deadline.
        """
        if waited := self._background.wait():
            self._metrics.checkpoint_stall_seconds.labels("wait").inc(waited)
            self._metrics.checkpoint_waits.inc()

    def _taken(self, step: int) -> "Future[Any]":
        """Take the state as it is: done when this rank's shards, and on rank 0 the metadata, are written."""
        state = self._state.collect(step)
        folder = self._target.folder(step) / TRAINER_FOLDER
        if self._copies is not None:
            writer = ShardWriter(folder, sync_files=False, ready=self._copies.wait)
            upload = async_save(state, storage_writer=writer, process_group=self._group, async_stager=self._copies)
            assert isinstance(upload, Future)  # noqa: S101 - only stagers that are asynchronous answer otherwise
            return upload
        written: Future[Any] = Future()
        with self._progress.during(Phase.SAVING, f"the files of checkpoint {step}"):
            try:
                writer = ShardWriter(folder, sync_files=False)
                written.set_result(save(state, storage_writer=writer, process_group=self._group))
            except (OSError, CheckpointException) as failure:
                written.set_exception(failure)
        return written

    def _finish(
        self,
        step: int,
        upload: "Future[Any]",
        published: Publication | None,
        last: bool,  # noqa: FBT001
        began: float,
    ) -> None:
        beside = time.monotonic()
        try:
            parts, error = self._written(step, upload, published, last=last), None
        except (OSError, CheckpointException, Unmergeable) as failure:
            folder = self._target.folder(step)
            parts, error = [], f"{reason(failure, self._state.ranks.rank)}, writing {folder}"
            log.error("checkpoint could not be saved; training goes on, the one before stays", step=step, error=error)
            self._remove(step, published)
        ended = time.monotonic()
        self._metrics.checkpoint_seconds.set(ended - began)
        self._metrics.checkpoint_write_seconds.inc(ended - beside)
        fault_point("trainer.saved")
        outcome = self._report(step, parts, error)
        self.last_seconds = time.monotonic() - began
        self.outcomes[step] = outcome
        if outcome == "committed":
            self._progress.commit(step)
        self._metrics.checkpoints.labels("failed" if error else outcome).inc()
        log.info("checkpoint acknowledged", step=step, state=outcome, bytes=sum(part.size for part in parts))
        self._progress.saving = None

    def _written(self, step: int, upload: "Future[Any]", published: Publication | None, *, last: bool) -> list[Part]:
        folder, rank = self._target.folder(step), self._state.ranks.rank
        try:
            # Before the long write of the shards is waited for, since the loop may need the memory.
            exported = {} if published is None else self._exported(published, folder, last=last)
        finally:
            # Also when that failed: what is still being written cannot be removed.
            written = wait_for([upload], self._deadline_s).done
        if not written:
            raise RuntimeError(f"checkpoint {step}: not written within {self._deadline_s:.0f} s")
        upload.result()
        files = {TRAINER_FOLDER: self._own_shards(step), **exported}
        for role, own in files.items():
            for file in own:
                sync_file(file)
            sync_folder(folder / role)
        checkpoint = self._target.run.checkpoint(step)
        for parent in (folder, *(one for one in folder.parents if one.is_relative_to(checkpoint.parent))):
            sync_folder(parent)
        return [part_of(checkpoint, file, role, rank) for role, own in files.items() for file in own]

    def _exported(self, published: Publication, folder: Path, *, last: bool) -> dict[str, list[Path]]:
        """Files for people, by the folder that they are in."""
        model, weights, adapter = self._target.model_path, folder / WEIGHTS_FOLDER, folder / ADAPTER_FOLDER
        full = self._state.policy.adapter is None
        target = weights if full else adapter
        try:
            published.result()
            target.mkdir(parents=True, exist_ok=True)
            written = {target.name: write_version(published.snapshot, model, target)}
        finally:
            published.snapshot.release()
        if last and not full:
            shutil.rmtree(weights, ignore_errors=True)
            merge(adapter, model, weights)
            written[weights.name] = sorted(weights.iterdir())
        return written

    def _own_shards(self, step: int) -> list[Path]:
        folder, rank = self._target.folder(step) / TRAINER_FOLDER, self._state.ranks.rank
        shards = sorted(folder.glob(f"__{rank}_*.distcp"))
        return [*shards, folder / ".metadata"] if rank == 0 else shards

    def _remove(self, step: int, published: Publication | None) -> None:
        weights = self._target.folder(step) / WEIGHTS_FOLDER
        parts = [] if published is None else [weights / file.layout.name for file in published.snapshot.files]
        for file in [*self._own_shards(step), *parts]:
            with suppress(OSError):  # what made the save fail may stand in the way here too
                file.unlink()
        if self._state.ranks.rank == 0:
            for name in (WEIGHTS_FOLDER, ADAPTER_FOLDER):
                shutil.rmtree(self._target.folder(step) / name, ignore_errors=True)

    def _report(self, step: int, parts: list[Part], error: str | None) -> Literal["committed", "abandoned"]:
        report = PartsReport(
            attempt=self._target.identity.attempt, step=step, rank=self._state.ranks.rank, parts=parts, error=error
        )
        until = time.monotonic() + self._deadline_s
        while True:
            reply = msgspec.json.decode(self._target.link.post("/trainer/parts", report), type=PartsReply)
            if reply.state != "waiting":
                return reply.state
            self._progress.beat(Phase.SAVING)
            if time.monotonic() > until:
                raise TimeoutError(f"checkpoint {step}: the orchestrator neither committed nor abandoned it in time")
            self._watch.failed.wait(REPORT_PAUSE_S)
            self._watch.check()
