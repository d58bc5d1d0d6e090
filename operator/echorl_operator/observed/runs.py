"""An EchoRLRun as the operator sees it: the user's spec, and what its own status says from earlier passes."""

from dataclasses import dataclass, field
from typing import Any

from echorl_core.names import Phase


@dataclass(frozen=True, slots=True)
class RunKey:
    """Which run; the key of the work queue."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One EchoRLRun. ``spec`` and ``status`` are the API server's, undecoded: an old object may break today's rules."""

    key: RunKey
    uid: str
    resource_version: str
    generation: int
    created_at: float
    deleted_at: float | None
    labels: dict[str, str]
    annotations: dict[str, str]
    spec: dict[str, Any]
    status: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fence:
    """What status says that must survive the operator: written before what it fences is done."""

    phase: Phase
    attempt: int
    """0: none has begun."""
    revision: str
    """Name of the ControllerRevision that the attempt is applied from; empty before the first."""
    observed_generation: int
