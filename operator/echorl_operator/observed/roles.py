"""What a run's orchestrator says of itself, of the trainer and of the engines (``GET /state``)."""

from dataclasses import dataclass

from echorl_core.names import Phase
from echorl_core.wire.goodput import Goodput
from echorl_core.wire.run_state import InfrastructureLoss, SandboxesState
from echorl_operator.observed.measurements import Measurement


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest committed checkpoint, by the orchestrator's word."""

    step: int
    committed_at: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class EngineState:
    """One engine as the orchestrator sees it."""

    name: str
    """The engine's ``host:port``."""
    state: str
    """One of discovered, starting, syncing, serving, draining, quarantined and lost."""
    version: int | None
    error: str


@dataclass(frozen=True, slots=True)
class RoleState:
    """One answer of ``GET /state`` that carries the run's uid. Unreachable means unknown: there is no record then."""

    attempt: int
    phase: Phase
    step: int | None
    waiting_for: str
    reward: float | None
    trained: int | None
    served_min: int | None
    served_max: int | None
    staleness_max: int | None
    checkpoint: Checkpoint | None
    abandoned: str
    """Why the latest checkpoint that could not be saved was; empty if none."""
    engines: tuple[EngineState, ...]
    failure_code: int | None
    """Exit code of a failure that is not restarted."""
    failure_message: str
    last_step_at: float
    """When the step, or the phase, changed last, as far as the orchestrator's process knows."""
    seen_at: float
    abandoned_step: int | None = None
    """Step of that checkpoint, until another one is committed."""
    volume_full: str = ""
    """What the run cannot write for want of room; empty while there is."""
    live_generation: int = 0
    """Generation of the run whose live settings are in effect; 0: those that it was started with."""
    restarts_in_place: int = 0
    """Of the trainer's processes in this attempt, from copies in memory, without those with pods in another's place."""
    replacements: int = 0
    """Those with pods that have taken the place of lost ones."""
    restart_reason: str = ""
    """Of the newest of these."""
    steps_without_rl: int | None = None
    """Newest steps in a row from whose rewards nothing could be learned; None: nothing should be, or not yet."""
    infrastructure_losses: tuple[InfrastructureLoss, ...] | None = None
    """Train environments that lose too many episodes to engines, sandboxes or workers; None: too early to tell."""
    sandboxes: SandboxesState | None = None
    """What episodes say of their sandboxes; None: the run has none."""
    goodput: Goodput | None = None
    """Where the time of its GPUs went; None: not measured yet."""
    measured: tuple[Measurement, ...] = ()
    """What the number of engines rests on, oldest first, since the orchestrator's process is followed."""
