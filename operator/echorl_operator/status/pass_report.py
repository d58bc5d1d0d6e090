"""The report of a pass: what it has to say about a run to people."""

from collections.abc import Mapping
from dataclasses import dataclass

from echorl_core.names import Phase
from echorl_core.termination_message import Preparation


@dataclass(frozen=True)
class PassReport:
    """What a pass over a run has to say about it; status is written from it."""

    phase: Phase
    reason: str
    message: str
    problems: Mapping[str, tuple[str, str]]
    """Reason and message of each condition that is true because something is wrong."""
    checkpoint_interval: int | None
    """Steps between two checkpoints; None if the manifest cannot be read."""
    trainer_pods: int
    """Trainer pods that there should be."""
    engines: int
    """Engine pods that there should be."""
    servers: int = 0
    """Pods that there should be of environments that are images."""
    max_staleness: int | None = None
    """Bound on the staleness of samples; None if the manifest cannot be read."""
    autoscale: str = ""
    """Why there are to be that many engines; empty: nothing new is to be told."""
    preparation: Preparation | None = None
    """What prepare found, in the pass that learns of it."""
    missing: str | None = None
    """How many pods an elastic gang goes on with, and why; empty: with all. None: the gang is not elastic."""
