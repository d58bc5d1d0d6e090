"""The orchestrator's HTTP API over a real desk and store; what arrives is kept."""

from pathlib import Path
from typing import Any

from echorl_core.names import Phase
from echorl_core.rundir import RunDirectory
from echorl_core.wire.reports import PartsReply, PartsReport, RestartReply, RestartReport, StepReport
from echorl_core.wire.run_state import RunState
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_orchestrator.attempt.live_settings import AttemptSettings
from echorl_orchestrator.attempt.trainer_desk import TrainerDesk
from echorl_orchestrator.batches.batch_store import BatchStore
from echorl_orchestrator.control.http_api import Actions, Api
from echorl_orchestrator.engines.engine_metrics import Distribution
from echorl_orchestrator.status.health import Health
from echorl_orchestrator.status.metrics_registry import Metrics, Reading, Series
from echorl_orchestrator.status.state_board import StateBoard
from echorl_testing.manifests.role_config import orchestrator_config
from echorl_testing.orchestrator.sealed import identity, prepared, store_of

TOKEN = "secret-token"


class ServedApi:
    """Of a run of two ranks that has sealed nothing."""

    def __init__(self, root: Path) -> None:
        self.run = RunDirectory(root)
        prepared(self.run)
        self.store: BatchStore = store_of(root)
        self.desk = TrainerDesk(self.store, num_ranks=2, start_step=0, attempt_folder=self.run.attempt(1))
        self.content: dict[str, Any] = {"phase": Phase.RUNNING, "reward": float("nan")}
        self.board = StateBoard(lambda: RunState(uid="u", attempt=1, **self.content))
        self.live = AttemptSettings(orchestrator_config(root), self.run.attempt(1))
        self.health = Health(longest_silence_s=10.0, busy=lambda: True)
        self.arrived: list[PolicyAnnouncement | StepReport | PartsReport | RestartReport] = []
        values: dict[str, Series] = {
            "trained_step": {(): 3},
            "committed_step": {(): None},
            "steps": {(): 2},
            "episode_failures": {("env",): 5, ("timeout",): None},
        }
        latency = {"engines_inter_token_latency_seconds": Distribution([("0.1", 2.0), ("+Inf", 3.0)], 0.5)}
        self.metrics = Metrics(lambda: Reading(values, latency))
        for received, use in ((30, "used"), (12, "used"), (900, "no_base"), (0, "none")):
            update = {"engine": "e", "received_bytes": received, "delta": use}
            self.metrics.engine_updated(update | ({"pause_s": 0.2} if use == "no_base" else {}))
        api = Api(
            identity(),
            TOKEN,
            num_ranks=2,
            desk=self.desk,
            actions=Actions(
                self._take,
                self._take,
                self._parts,
                lambda report: self.desk.noticed(report, committed=0),
                self._restarted,
                lambda: self.desk.stop(committed=0),
                self.live.accept,
            ),
            board=self.board,
            health=self.health,
            registry=self.metrics.registry,
        )
        self.app = api.application()

    async def _take(self, message: PolicyAnnouncement | StepReport) -> None:
        self.arrived.append(message)

    async def _restarted(self, message: RestartReport) -> RestartReply:
        self.arrived.append(message)
        return RestartReply(checkpoint="committed")

    async def _parts(self, message: PartsReport) -> PartsReply:
        self.arrived.append(message)
        return PartsReply(state="waiting")
