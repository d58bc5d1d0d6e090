"""What a pass over a run has to say to people."""

from collections.abc import Mapping
from dataclasses import dataclass

from echorl_core.names import Phase
from echorl_core.termination_message import Preparation


@dataclass(frozen=True)
class PassReport:
    """What a pass has to say."""

    phase: Phase
    reason: str
    message: str
    problems: Mapping[str, tuple[str, str]]
    """Reason and message by condition, where something is wrong."""
    checkpoint_interval: int | None
    """Steps; None if the manifest cannot be read."""
    trainer_pods: int
    engines: int
    """Pods that there should be."""
    max_staleness: int | None = None
    """Bound on the staleness of samples; None if the manifest cannot be read."""
    found: Preparation | None = None
    """What prepare found, in the pass that learns of it."""
