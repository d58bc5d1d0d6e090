"""Sealed batches on disk: written whole before anybody may pull them, kept until a later checkpoint is committed.

Blocking file work; callers run it in a thread.
"""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import structlog

from echorl_core import checkpoints
from echorl_core.attempts import read_prepared
from echorl_core.checkpoints import Damage
from echorl_core.faults import fault_point
from echorl_core.identity import RunIdentity
from echorl_core.rundir import TEMPORARY_PREFIX, RunDirectory, write_folder
from echorl_orchestrator.batches.sealing import SEAL_NAME, STATE_NAME, SavedState, Seal, rank_file, read_state
from echorl_orchestrator.failures import BadInputError

log = structlog.get_logger()


class BatchStore:
    """Batches of one attempt. Those that other attempts left are never served."""

    def __init__(self, run: RunDirectory, identity: RunIdentity, *, record: bool) -> None:
        """``record``: keep a copy of each batch under ``record/`` for replay."""
        self._run, self._identity, self._record = run, identity, record
        self._seals: dict[int, Seal] = {}
        self._counts: dict[int, dict[str, Any]] = {}

    def load(self) -> None:
        """Find the batches that this attempt sealed before the orchestrator restarted, and remove what it left half."""
        for parent in (self._run.batches, self._run.recorded_batch(self._identity.attempt, 0).parent):
            for half in parent.glob(f"{TEMPORARY_PREFIX}*"):
                shutil.rmtree(half, ignore_errors=True)
        for step, folder in self._run.sealed_steps():
            seal = msgspec.json.decode((folder / SEAL_NAME).read_bytes(), type=Seal)
            if (seal.run_uid, seal.attempt, seal.step) == (self._identity.uid, self._identity.attempt, step):
                self._keep(seal)

    def _keep(self, seal: Seal) -> None:
        self._seals[seal.step] = seal
        self._counts[seal.step] = seal.counts

    @property
    def newest(self) -> int | None:
        """Highest sealed step of this attempt that is still kept."""
        return max(self._seals, default=None)

    def seal(self, step: int) -> Seal | None:
        """What the batch of ``step`` is; None if it is not sealed, or released."""
        return self._seals.get(step)

    def counts(self, step: int) -> dict[str, Any]:
        """Facts for the record of ``step``; a checkpoint may have released its batch before its report came in.

        Those of earlier steps are forgotten: reports come in order.
        """
        for old in [other for other in list(self._counts) if other < step]:
            del self._counts[old]
        return self._counts.get(step, {})

    def checkpoint_steps(self, up_to: int) -> list[int]:
        """Kept batches up to ``up_to`` after which a checkpoint is saved."""
        return [step for step, seal in sorted(self._seals.items()) if seal.checkpoint and step <= up_to]

    def write(self, seal: Seal, files: dict[str, bytes]) -> None:
        """Seal a batch: after this returns it is durable and may be pulled."""
        fault_point("orchestrator.before_seal")
        # The copy first: a sealed batch is trained whatever happens next, and must not be missing from the record. One
        # that was never sealed is replaced when its step is.
        if self._record:
            copy = self._run.recorded_batch(self._identity.attempt, seal.step)
            write_folder(copy, files, within=self._run.root)
        fault_point("orchestrator.recorded")
        write_folder(self._run.batch(seal.step), files, within=self._run.root)
        fault_point("orchestrator.after_seal")
        self._keep(seal)

    def rank_file(self, step: int, rank: int) -> Path:
        """What data-parallel ``rank`` trains, as bytes; the batch must be sealed."""
        return self._run.batch(step) / rank_file(rank)

    def state(self, step: int) -> bytes:
        """The orchestrator's state as of a sealed batch, encoded."""
        return (self._run.batch(step) / STATE_NAME).read_bytes()

    def release(self, step: int) -> None:
        """Remove batches up to ``step``: a checkpoint made them superfluous."""
        for sealed, folder in self._run.sealed_steps():
            if sealed > step:
                continue
            # Renamed first: a folder that lost some of its files must not pass for a sealed batch.
            doomed = folder.with_name(f"{TEMPORARY_PREFIX}{folder.name}.released")
            shutil.rmtree(doomed, ignore_errors=True)
            folder.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
            self._seals.pop(sealed, None)


def starting_state(run: RunDirectory, identity: RunIdentity, store: BatchStore) -> tuple[int, SavedState | None]:
    """The step that the attempt resumed from (0: none), and the state as of the newest thing that counts.

    That is this attempt's newest sealed batch or checkpoint, else the checkpoint that it was prepared with.

    Raises:
        BadInputError: the attempt was not prepared, or a state is of another run.
        Damage: the checkpoint's state is missing or altered.
    """
    prepared = read_prepared(run, identity.attempt)
    if prepared is None or prepared.run_uid != identity.uid:
        raise BadInputError(f"{run.attempt(identity.attempt)}: attempt {identity.attempt} of this run was not prepared")
    candidates: list[tuple[int, bytes]] = []
    if store.newest is not None:
        candidates.append((store.newest, store.state(store.newest)))
    for checkpoint in checkpoints.committed(run)[0]:
        own = (checkpoint.manifest.run_uid, checkpoint.manifest.attempt) == (identity.uid, identity.attempt)
        if own or (prepared.checkpoint is not None and checkpoint.step == prepared.resume_step):
            candidates.append((checkpoint.step, _checkpointed(checkpoint)))
    if prepared.checkpoint is not None and not candidates:
        raise Damage(f"{run.root / prepared.checkpoint}: no readable manifest, but this attempt resumes from it")
    if not candidates:
        return 0, None
    state = read_state(max(candidates)[1])
    if state.run_uid != identity.uid:
        raise BadInputError(f"{run.root}: saved state of run {state.run_uid!r}; this is run {identity.uid!r}")
    return prepared.resume_step, state


def _checkpointed(checkpoint: checkpoints.Committed) -> bytes:
    part = next((part for part in checkpoint.manifest.parts if part.role == "orchestrator"), None)
    if part is None:
        raise Damage(f"{checkpoint.folder}: its manifest names no orchestrator state")
    checkpoints.verify(checkpoint.folder, msgspec.structs.replace(checkpoint.manifest, parts=[part]))
    return (checkpoint.folder / part.file).read_bytes()
