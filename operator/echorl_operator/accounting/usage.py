"""What the GPUs that a run's pods ask for are doing at one moment."""

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from echorl_core.names import Phase
from echorl_operator.names import NO_STEP, PodRole
from echorl_operator.observed.memory import ENDED, Memory
from echorl_operator.observed.records import PodPhase, PodRecord
from echorl_operator.observed.world import Observed
from echorl_operator.quantities import value

GPU_ROLES = (PodRole.TRAINER, PodRole.INFERENCE)


class GpuState(StrEnum):
    """Label ``state`` of the operator's metric ``gpu_seconds``."""

    USEFUL = "useful"
    """The run makes steps that it has not made before."""
    STARTING = "starting"
    """Images, models, engines: the attempt, or this pod, is not at work yet."""
    RESTARTING = "restarting"
    """From a restart until the step that was reached before it is reached again."""
    WAITING = "waiting"
    """Asked for and not there: the pod has no node. Or there, and the run makes no step."""
    STOPPING = "stopping"
    """The run has ended or is suspended, or the pod is being deleted, and its node still holds them."""


Usage = Counter[tuple[PodRole, GpuState]]
"""GPUs by role and state."""


def usage(observed: Observed, resource: str, *, recovering: bool) -> Usage:
    """GPUs that the run's trainer pods and engines ask for; those of a gated pod nobody has asked for yet.

    Args:
        observed: the run.
        resource: of nodes, such as ``nvidia.com/gpu``.
        recovering: the run has not come again as far as it was before its last restart.
    """
    asked: Usage = Counter()
    shared = _of_run(observed, recovering=recovering)
    for pod in _pods(observed):
        gpus = int(value(dict(pod.wants).get(resource, "0")))
        if gpus:
            asked[pod.role or PodRole.TRAINER, _of_pod(pod, shared)] += gpus
    return asked


def _pods(observed: Observed) -> Iterator[PodRecord]:
    return (pod for pod in observed.pods if pod.role in GPU_ROLES and not pod.gated and not pod.ended)


def _of_run(observed: Observed, *, recovering: bool) -> GpuState:
    """What pods do that are on their nodes and ready."""
    phase = Memory.of(observed.run.status).phase
    if phase in ENDED or phase is Phase.SUSPENDED or observed.run.spec.get("suspend") is True:
        return GpuState.STOPPING
    if recovering:
        return GpuState.RESTARTING
    if phase is not Phase.RUNNING:
        return GpuState.STARTING
    if _makes_no_step(observed.run.status):
        return GpuState.WAITING
    orchestrated = any(pod.ready for pod in observed.of(PodRole.ORCHESTRATOR))
    return GpuState.USEFUL if orchestrated else GpuState.RESTARTING


def _of_pod(pod: PodRecord, of_run: GpuState) -> GpuState:
    if not pod.node and pod.phase is PodPhase.PENDING:
        return GpuState.WAITING
    if of_run is not GpuState.USEFUL:
        return of_run
    if pod.meta.deleted_at is not None:
        return GpuState.STOPPING
    return GpuState.USEFUL if pod.ready else GpuState.STARTING


def _makes_no_step(status: Mapping[str, Any]) -> bool:
    entries = (entry for entry in status.get("conditions", []) if isinstance(entry, Mapping))
    told = [(entry.get("type"), entry.get("status"), entry.get("reason")) for entry in entries]
    return ("Stalled", "True", NO_STEP) in told
