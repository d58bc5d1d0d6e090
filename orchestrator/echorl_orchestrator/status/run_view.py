"""What the run's state is, put together from the parts: for ``GET /state``."""

from dataclasses import dataclass
from pathlib import Path

from echorl_core.config import OrchestratorConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import RESERVED_ENVIRONMENT_NAME, Phase
from echorl_core.wire.run_state import (
    CheckpointState,
    EpisodeCounts,
    Failure,
    PolicyState,
    Rates,
    RunState,
    VersionRange,
)
from echorl_orchestrator.accounting.meter import Meter
from echorl_orchestrator.attempt.disk import Disk
from echorl_orchestrator.attempt.live_settings import AttemptSettings
from echorl_orchestrator.engines import EnginePool
from echorl_orchestrator.evals.evaluation import Evals
from echorl_orchestrator.rollout.counters import Counters, Drop
from echorl_orchestrator.rollout.mode_traits import MODES
from echorl_orchestrator.rollout.rollout import Rollout
from echorl_orchestrator.sandboxes.ledger import SandboxLedger
from echorl_orchestrator.status.progress import RunEnd, RunProgress
from echorl_orchestrator.status.state_board import RunStanding, waiting_for
from echorl_orchestrator.status.throughput import Throughput


@dataclass(frozen=True)
class RunView:
    """Reads the parts and keeps nothing; each of them is written by one class alone."""

    config: OrchestratorConfig
    """With the live settings that were in effect when the process began."""
    identity: RunIdentity
    disk: Disk
    pool: EnginePool
    evals: Evals
    counters: Counters
    throughput: Throughput
    live: AttemptSettings
    rollout: Rollout
    sandboxes: SandboxLedger
    progress: RunProgress
    """Written by ``control.trainer_reports``."""
    end: RunEnd
    """Written by ``control.endings``."""
    meter: Meter
    """Where the time of the run's GPUs goes."""

    @property
    def step(self) -> int:
        """The newest trained step."""
        desk = self.disk.desk
        return desk.start_step if desk.trained is None else desk.trained

    @property
    def reward(self) -> float | None:
        """Mean reward of the newest trained step; None: none is known of one."""
        return self.progress.last_row.get(f"reward/{RESERVED_ENVIRONMENT_NAME}/mean")

    @property
    def in_flight(self) -> int:
        """Episodes that are being played, evals included."""
        return self.rollout.in_flight + self.evals.in_flight

    def phase(self) -> Phase:
        """Where the run stands, as far as this role knows."""
        if self.end.phase is not None:
            return self.end.phase
        ready = self.disk.desk.trained is not None and self._dispatch_version() >= 0
        return Phase.RUNNING if ready or self.disk.desk.reported > self.disk.start_step else Phase.STARTING

    def state(self) -> RunState:
        """The answer of ``GET /state`` but its revision."""
        served, row = self.pool.served(), self.progress.last_row
        return RunState(
            run=self.identity.name,
            uid=self.identity.uid,
            attempt=self.identity.attempt,
            phase=self.phase(),
            step=self.step,
            max_steps=self.live.last,
            start_step=self.disk.start_step,
            live_generation=self.live.generation,
            waiting_for=waiting_for(self._standing()),
            volume_full=self.disk.room.lacking,
            policy=PolicyState(
                trained=self.disk.desk.trained,
                served=None if served is None else VersionRange(min=served[0], max=served[1]),
                staleness_max=row.get(f"staleness/{RESERVED_ENVIRONMENT_NAME}/max"),
            ),
            checkpoint=self._checkpoint(),
            reward=self.reward,
            steps_without_rl=self.progress.steps_without_rl,
            infrastructure_losses=self.rollout.losses.beyond(),
            sandboxes=None if self.config.sandboxes is None else self.sandboxes.state(),
            env_nll=row.get(f"env_nll/{RESERVED_ENVIRONMENT_NAME}"),
            engines=self.pool.views(),
            rates=Rates(
                sampled_tokens_per_s=self.throughput.sampled_tokens_per_s,
                trained_tokens_per_s=self.throughput.trained_tokens_per_s,
            ),
            episodes=EpisodeCounts(
                running=self.in_flight,
                finished=self.counters.totals["episodes/finished"],
                failed=self.counters.totals["episodes/failed"],
                dropped_stale=self.counters.totals[f"dropped/{Drop.STALE}"],
                groups_partial=self.counters.totals["groups/partial"],
            ),
            eval=self.progress.last_evals,
            goodput=self.meter.goodput,
            restarts_in_place=self.disk.desk.restarts_in_place,
            failure=self._failure(),
        )

    def _standing(self) -> RunStanding:
        desk, failure, loaded = self.disk.desk, self.end.failure, self.rollout.loaded
        return RunStanding(
            next_step=self.rollout.next_step,
            max_steps=self.live.last,
            trained=desk.trained,
            start_step=desk.start_step,
            dispatch_version=self._dispatch_version(),
            engines=len(self.pool.views()),
            ready=self.rollout.ready,
            per_batch=0 if loaded is None else loaded.buffer.episodes_per_batch(),
            in_flight=self.rollout.in_flight,
            evals=self.evals.pending,
            checkpoints=self.disk.committer.waiting,
            num_ranks=self.config.batch.num_ranks,
            notice=desk.notice,
            no_room=self.disk.room.lacking,
            failure=None if failure is None else failure.message,
        )

    def _dispatch_version(self) -> int:
        """The version of train episodes that start now; -1: they wait for an engine, which mode sft never does."""
        return self.pool.version_for_dispatch() if MODES[self.config.batch.mode].versions else self.step

    def _checkpoint(self) -> CheckpointState:
        newest = self.disk.committer.newest
        return CheckpointState(
            step=None if newest is None else newest.step,
            committed=self.disk.committer.committed_steps,
            size_bytes=None if newest is None else newest.size_bytes,
            committed_at=None if newest is None else newest.committed_at,
            path=None if newest is None else str(self._folder(newest.step)),
            abandoned=self.disk.committer.reason,
            abandoned_step=self.disk.committer.lost_step,
        )

    def _folder(self, step: int) -> Path:
        return self.disk.run.checkpoint(step).relative_to(self.disk.run.root)

    def _failure(self) -> Failure | None:
        failure = self.end.failure
        return None if failure is None else Failure(exit_code=int(failure.code), message=failure.message)
