"""The parts of one attempt, whole: what ``wiring`` makes and the classes of this package act on."""

from dataclasses import dataclass

from echorl_orchestrator.engines.journal.journal import TurnJournal
from echorl_orchestrator.episodes.player import EpisodePlayer
from echorl_orchestrator.monitors.monitors import Monitors
from echorl_orchestrator.status.health import Health
from echorl_orchestrator.status.metrics_registry import Metrics
from echorl_orchestrator.status.run_view import RunView
from echorl_orchestrator.status.state_board import StateBoard
from echorl_orchestrator.status.volume import Volume


@dataclass(frozen=True, kw_only=True)
class RunParts(RunView):
    """Everything that an attempt consists of: what its state is read from, and the rest."""

    player: EpisodePlayer
    health: Health
    board: StateBoard
    monitors: Monitors
    volume: Volume
    metrics: Metrics
    journal: TurnJournal | None = None
    """Turns for the next process of the attempt; None unless asked for."""
