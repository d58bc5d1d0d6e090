"""What the run directory says at the start of the process, and the parts that keep it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echorl_core.checkpoints import NO_HISTORY
from echorl_core.config import OrchestratorConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_core.rundir import RunDirectory
from echorl_orchestrator.attempt.committer import Committer
from echorl_orchestrator.attempt.fixed_settings import check_fixed
from echorl_orchestrator.attempt.trainer_desk import TrainerDesk
from echorl_orchestrator.batches.batch_store import BatchStore, starting_state
from echorl_orchestrator.batches.sealing import SavedState
from echorl_orchestrator.disk_room import DiskRoom
from echorl_orchestrator.failures import RunFailure
from echorl_orchestrator.records.episode_records import EpisodeFiles, EpisodeRecords
from echorl_orchestrator.records.recorder import (
    EVALS,
    STEPS,
    RecordedEvals,
    Recorder,
    eval_summary,
    recorded_evals,
    was_played,
)


@dataclass(frozen=True)
class Disk:
    """What the run directory says at the start of the process."""

    run: RunDirectory
    store: BatchStore
    committer: Committer
    desk: TrainerDesk
    recorder: Recorder
    episodes: EpisodeRecords
    state: SavedState | None
    """As of the newest sealed batch or checkpoint; None on a fresh run."""
    start_step: int
    """The step that the attempt resumed from."""
    last_row: dict[str, Any]
    """The newest row of this attempt's steps; empty if there is none."""
    last_evals: dict[str, dict[str, Any]]
    """The newest eval of each environment in this attempt, without examples."""
    evals: RecordedEvals
    """Evals that any attempt recorded."""
    room: DiskRoom
    """Where writes wait for room on the volume."""

    @property
    def next_step(self) -> int:
        """The batch to seal next."""
        return 1 if self.state is None else self.state.step + 1

    def unsaved(self, step: int) -> bool:
        """Whether a checkpoint of ``step`` is missing that no batch has asked the ranks for."""
        seal, state = self.store.seal(step), self.committer.state(step)
        return step > self.start_step and state == "waiting" and (seal is None or not seal.checkpoint)

    def check_saved(self, step: int, state: str) -> None:
        """The run's last checkpoint must be there.

        Raises:
            RunFailure: it was abandoned.
        """
        if state == "abandoned":
            reason = self.committer.reason
            raise RunFailure(ExitCode.CRASH, f"the last checkpoint, of step {step}, was not committed: {reason}")

    @property
    def history(self) -> str:
        """Chain over the batches sealed so far."""
        return NO_HISTORY if self.state is None else self.state.history


def read_disk(config: OrchestratorConfig, identity: RunIdentity, room: DiskRoom, on_commit: Callable[[], None]) -> Disk:
    """Find out where the attempt stands. Blocking.

    Raises:
        Damage: what the attempt resumes from is not what was committed.
        BadInputError: the attempt was not prepared, or a setting differs that no attempt may change.
    """
    run = RunDirectory(Path(config.run_dir))
    store = BatchStore(run, identity, record=config.record)
    store.load()
    start_step, state = starting_state(run, identity, store)
    if state is not None:
        check_fixed(state.fixed, config, f"state of step {state.step}")
    committer = Committer(
        run,
        identity,
        store,
        config.checkpoint,
        num_ranks=config.batch.num_ranks,
        part_deadline_s=config.part_deadline_s,
        on_change=on_commit,
    )
    committer.load(start_step)
    desk = TrainerDesk(
        store,
        num_ranks=config.batch.num_ranks,
        context=config.batch.context,
        start_step=start_step,
        attempt_folder=run.attempt(identity.attempt),
        room=room,
    )
    desk.load()
    if state is not None:
        # A checkpoint may have released every batch that was trained.
        desk.given = max(desk.given, state.step)
    recorder = Recorder(run.records(identity.attempt), room)
    recorder.open()
    files = EpisodeFiles(run, identity.attempt) if config.record_episodes else None
    rows = recorder.rows(STEPS)
    if rows:
        desk.reported = max(row["step"] for row in rows)
    return Disk(
        run=run,
        store=store,
        committer=committer,
        desk=desk,
        recorder=recorder,
        episodes=EpisodeRecords(recorder, files, identity.attempt),
        state=state,
        start_step=start_step,
        last_row=rows[-1] if rows else {},
        last_evals={row["environment"]: eval_summary(row) for row in recorder.rows(EVALS) if was_played(row)},
        evals=recorded_evals(run),
        room=room,
    )
