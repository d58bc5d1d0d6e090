"""Copies of a rank's state in memory that outlives its process, and the way back from them.

    step s: state --one copy, beside the next step--> the slot that does not hold the newest step
            all ranks have theirs --> s is held; only then may the other slot be overwritten

So whenever a process ends, some step is whole on every rank. Where copies also go to a neighbour's memory (mirror.py)
two steps are left alone, whatever is copied meanwhile: the newest that all neighbours hold, and the one that goes there
now. So whenever a pod is lost, some step is whole on every other rank and at the neighbour.

What the orchestrator knew at that step lies beside the batches that it has sealed since the newest committed
checkpoint, all of which it keeps: it goes on as it is and gives the same batches again. What a process had in hand for
it, the step's report and a save, stands in the copy's record.
"""

import math
import mmap
import os
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import structlog
import torch
import torch.distributed as dist

from echorl_core.checkpoints import committed
from echorl_core.config import MemoryConfig, OptimizerConfig
from echorl_core.faults import fault_point
from echorl_core.memory_copies import HEAD_BYTES, NEIGHBOURS_SLOTS, OWN_SLOTS, MirrorNote, Restarted, Slot
from echorl_core.rundir import RunDirectory
from echorl_core.wire.reports import RestartReply, RestartReport, StepReport
from echorl_trainer.background import Background
from echorl_trainer.health import Health
from echorl_trainer.link import Link
from echorl_trainer.shards import local
from echorl_trainer.staging import HostCopies, read_back
from echorl_trainer.state import TrainState, Unreadable

log = structlog.get_logger()


_MOMENTS = {"adamw": 2, "muon": 1}
"""Values beside each weight that trains, at least."""
_MOMENT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


class LimitTooLow(ValueError):
    """The copies of the state take more than the manifest allows."""


@dataclass(frozen=True)
class Unfinished:
    """What a rank still had to do when its step was copied."""

    report: StepReport | None
    """Of the step; on rank 0."""
    save: bool
    """Whether a checkpoint of it was asked for."""
    last: bool
    """Whether it was the run's last step."""


@dataclass(frozen=True)
class Held:
    """What a restarted gang goes on from."""

    step: int
    unfinished: Unfinished
    is_saved: bool
    """Whether it is decided what becomes of the step's checkpoint."""


class _Room:
    """One slot as this process uses it."""

    def __init__(self, slot: Slot, device: torch.device) -> None:
        self.slot, self._end = slot, HEAD_BYTES
        self.copies = HostCopies(device, self._more)

    def seal(self, step: int, described: dict[str, Any], unfinished: Unfinished) -> None:
        self.slot.seal(step, pickle.dumps((described, unfinished)), self._end)

    def _more(self, size: int) -> tuple[mmap.mmap, int]:
        start = self._end
        self._end += size + -size % mmap.ALLOCATIONGRANULARITY
        os.ftruncate(self.slot.file, self._end)
        return mmap.mmap(self.slot.file, size, offset=start), start


class MemoryCopies:
    """Keeps the state of the newest steps for the processes that come after this one."""

    def __init__(
        self,
        state: TrainState,
        slots: Sequence[Slot],
        config: MemoryConfig,
        optimizer: OptimizerConfig,
        *,
        deadline_s: float,
        health: Health,
        mirror: MirrorNote | None = None,
    ) -> None:
        """``deadline_s`` bounds a copy. ``mirror``: of copies that go to a neighbour; None: none do. Collective.

        Raises:
            LimitTooLow: the copies of the state on every rank are beyond the limit, by arithmetic.
        """
        self._mirror = mirror
        self._mirrored: int | None = None
        """Newest step that all neighbours hold; left alone, as is ``_wanted``."""
        self._wanted: int | None = None
        """Newest step that all ranks hold and the neighbours are to hold, or do."""
        self._state, self._every, self._limit = state, config.every_steps, config.limit_bytes
        trained = [local(one) for one in state.policy.parameters() if one.requires_grad]
        # Moments are made by the first step. Muon's may be a little more.
        moments = _MOMENTS.get(optimizer.type, 0) * _MOMENT_BYTES[optimizer.state_dtype]
        self._check(sum(one.nbytes + one.numel() * moments for one in trained))
        self._rooms = [_Room(slot, state.ranks.device) for slot in slots]
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=deadline_s))
        self._metrics = health.metrics
        self._background = Background(health, deadline_s=2 * deadline_s)
        state.optimizer.register_step_pre_hook(self._guard)

    def is_due(self, step: int, *, save: bool) -> bool:
        """Whether ``step`` is to be copied: where a checkpoint is committed, batches before it are gone."""
        return save or step % self._every == 0

    def begin(self, step: int, unfinished: Unfinished) -> None:
        """Begin to copy the state after ``step``; collective. Returns when the state may change.

        Raises:
            LimitTooLow: the copies are beyond the limit.
            TimeoutError: the copy before was not whole everywhere in time.
        """
        began = time.monotonic()
        self._background.wait()
        state = self._state.collect(step)
        kept = {one for one in (self._mirrored, self._wanted) if one is not None}
        free = [one for one in self._rooms if one.slot.step not in kept]
        room = min(free, key=lambda one: -1 if one.slot.step is None else one.slot.step)
        room.slot.clear()
        room.copies.stage(state)
        described = room.copies.described(state)
        self._check(room.copies.size_bytes)
        self._metrics.memory_bytes.set(sum(one.copies.size_bytes for one in self._rooms))
        self._metrics.checkpoint_stall_seconds.labels("memory").inc(time.monotonic() - began)
        self._background.start(
            f"hold-{step}",
            partial(self._finish, room, step, described, unfinished),
            awaited=f"all ranks to hold step {step} in memory",
        )

    def wait(self) -> None:
        """Return when no copy is under way."""
        self._background.wait()

    def resume(self, restarted: Restarted, link: Link, run: RunDirectory, attempt: int) -> Held:
        """Take over the newest step that every rank holds; collective. Where there is none, the slots are empty.

        Raises:
            Unreadable: no step is held by all, or the newest committed checkpoint is beyond it.
        """
        try:
            return self._resumed(restarted, link, run, attempt)
        except BaseException as error:
            # Who starts the ranks tries once: without a step in memory a new attempt begins at a checkpoint. But where
            # it was a pod that was lost meanwhile, another one goes on from what the others hold.
            if self._mirror is None or isinstance(error, Unreadable):
                for room in self._rooms:
                    room.slot.clear()
            raise

    def _resumed(self, restarted: Restarted, link: Link, run: RunDirectory, attempt: int) -> Held:
        rank = self._state.ranks.rank
        own = {room.slot.step: room.slot for room in self._rooms if room.slot.step is not None}
        saved = [one.step for one in committed(run)[0] if one.manifest.attempt == attempt] if rank == 0 else []
        found: list[tuple[list[int], list[int]]] = [([], [])] * self._state.ranks.world_size
        dist.all_gather_object(found, (sorted(own), saved), group=self._group)
        common = set.intersection(*(set(steps) for steps, _ in found))
        step = max(common, default=None)
        if step is None:
            raise Unreadable(f"no step is held in memory by all ranks: found {[steps for steps, _ in found]}")
        if step < (newest := max(found[0][1], default=0)):
            raise Unreadable(f"step {step} is held in memory; checkpoint {newest} has released the batch after it")
        described, unfinished = pickle.loads(own[step].record())  # noqa: S301 - written by a process of this attempt
        self._state.take_over(read_back(described, mmap.mmap(own[step].file, 0)))
        before = [] if self._mirror is None else [one for one in common if one < step]
        self._mirrored, self._wanted = max(before, default=None), step
        for other in self._rooms:
            if other.slot.step not in (self._mirrored, step):
                other.slot.clear()  # one that not all hold must not pass for the newest
        replies: list[bytes | None] = [None]
        if rank == 0:
            report = RestartReport(
                attempt=attempt,
                step=step,
                count=restarted.count,
                reason=restarted.reason,
                replacements=restarted.replacements,
            )
            replies = [link.post("/trainer/restart", report)]
        dist.broadcast_object_list(replies, src=0, group=self._group)
        reply = msgspec.json.decode(replies[0] or b"", type=RestartReply)
        if unfinished.last and reply.checkpoint == "abandoned":
            raise Unreadable(f"checkpoint {step}, the run's last one, was not committed")
        if self._mirror is not None:
            self._mirror.want(step)
        self._metrics.memory_step.set(step)
        log.info("resumed from memory", step=step, restarts=restarted.count, checkpoint=reply.checkpoint)
        return Held(step, unfinished, is_saved=reply.checkpoint != "waiting")

    def _finish(self, room: _Room, step: int, described: dict[str, Any], unfinished: Unfinished) -> None:
        room.copies.wait()
        fault_point("trainer.before_hold")
        room.seal(step, described, unfinished)
        if self._mirror is None:
            dist.barrier(self._group)
        else:
            self._choose(step, self._mirror)
        self._metrics.memory_step.set(step)

    def _choose(self, step: int, mirror: MirrorNote) -> None:
        """Wait until all ranks hold ``step``; it goes to the neighbours next once the step before is at all of them."""
        done = torch.tensor(-1 if mirror.done is None else mirror.done)
        dist.all_reduce(done, dist.ReduceOp.MIN, group=self._group)
        if self._wanted is None or int(done) >= self._wanted:
            self._mirrored, self._wanted = self._wanted, step
            mirror.want(step)
            self._metrics.mirrored_step.set(math.nan if self._mirrored is None else self._mirrored)

    def _guard(self, *_: Any) -> None:
        for room in self._rooms:
            room.copies.guard()

    def _check(self, size: int) -> None:
        ranks = self._state.ranks.world_size
        count, named = (2, "two") if self._mirror is None else (OWN_SLOTS + NEIGHBOURS_SLOTS, "with mirror five")
        if (needed := count * size * ranks) > self._limit:
            raise LimitTooLow(
                f"spec.checkpoint.memory.limit: found {self._limit} bytes, accepted are at least {needed}: "
                f"{named} copies of {size} bytes of weights and moments on each of {ranks} ranks"
            )
