"""The parts of one attempt, whole: what ``wiring`` makes and the classes of this package act on."""

from dataclasses import dataclass

from echorl_core.config import OrchestratorConfig
from echorl_core.identity import RunIdentity
from echorl_orchestrator.attempt.disk import Disk
from echorl_orchestrator.attempt.live_settings import AttemptSettings
from echorl_orchestrator.engines import EnginePool
from echorl_orchestrator.episodes.player import EpisodePlayer
from echorl_orchestrator.evals.evaluation import Evals
from echorl_orchestrator.monitors.monitors import Monitors
from echorl_orchestrator.rollout.counters import Counters
from echorl_orchestrator.rollout.rollout import Rollout
from echorl_orchestrator.status.health import Health
from echorl_orchestrator.status.metrics_registry import Metrics
from echorl_orchestrator.status.progress import RunEnd, RunProgress
from echorl_orchestrator.status.run_view import RunView
from echorl_orchestrator.status.state_board import StateBoard
from echorl_orchestrator.status.throughput import Throughput
from echorl_orchestrator.status.volume import Volume


@dataclass(frozen=True)
class RunParts:
    """Everything that an attempt consists of; each part is written by one class alone."""

    config: OrchestratorConfig
    """With the live settings that were in effect when the process began."""
    identity: RunIdentity
    live: AttemptSettings
    disk: Disk
    pool: EnginePool
    player: EpisodePlayer
    rollout: Rollout
    evals: Evals
    counters: Counters
    health: Health
    throughput: Throughput
    progress: RunProgress
    """Written by ``trainer_reports``."""
    end: RunEnd
    """Written by ``endings``."""
    view: RunView
    board: StateBoard
    monitors: Monitors
    volume: Volume
    metrics: Metrics
