"""Why pods were started again, in words of a small fixed set."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from echorl_operator.names import PodRole

_OF_PODS = (PodRole.TRAINER, PodRole.ORCHESTRATOR, PodRole.PREPARE)


class Cause(StrEnum):
    """Label ``cause`` of the operator's metric ``restarts``; the first that holds."""

    OUT_OF_MEMORY = "OutOfMemory"
    """The container's limit, or the node's."""
    EVICTED = "Evicted"
    """By the kubelet, for the node's sake."""
    DISRUPTED = "Disrupted"
    """Drained, preempted, or its node is gone: ``DisruptionTarget``."""
    NODE_LOST = "NodeLost"
    """Its pods hang on a node that is gone."""
    NOTICE = "Notice"
    """Its processes were told to end, and did."""
    SIGNALLED = "Signalled"
    """A signal ended the process."""
    CRASHED = "Crashed"
    """The process ended with a code that is restarted."""
    POD_LOST = "PodLost"
    """Deleted, replaced, or ended for a reason of the kubelet's."""
    FINISHED_EARLY = "FinishedEarly"
    """The ranks finished, and the orchestrator goes on."""
    STOPPED = "Stopped"
    """Somebody stopped the orchestrator past the operator."""
    STALLED = "Stalled"
    """No step for ``stallPolicy.noStepFor``."""
    EDITED = "Edited"
    """The manifest changed."""
    RESIZED = "Resized"
    """An elastic gang goes on with fewer pods, or with more."""
    CONTAINER = "ContainerRestarted"
    """Its kubelet started an engine's container again."""
    UNKNOWN = "Unknown"
    """Decided by a process of the operator that is gone."""


def combinations() -> Iterator["Restart"]:
    """Every pair of role and cause that a restart can have."""
    for cause in Cause:
        roles = (PodRole.INFERENCE,) if cause is Cause.CONTAINER else _OF_PODS
        yield from (Restart(role, cause) for role in roles)


@dataclass(frozen=True, slots=True)
class Restart:
    """One restart."""

    role: str
    """trainer (the whole gang), orchestrator, inference (one engine) or prepare (another try)."""
    cause: Cause
