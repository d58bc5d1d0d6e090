"""Chooses what to read that is not watched: events of what is wrong, pods under the names of those that are missing."""

from echorl_operator import names
from echorl_operator.diagnosis import scheduler
from echorl_operator.names import PodRole
from echorl_operator.observed.memory import WITHOUT_GANG, Memory
from echorl_operator.observed.records import ContainerPhase, Kind, PodPhase, PodRecord
from echorl_operator.observed.runs import RunRecord
from echorl_operator.observed.warning_events import EventSubject
from echorl_operator.observed.world import Observed

CREATING = frozenset({"ContainerCreating", "PodInitializing"})
MOST_PODS = 2
"""The most pods that are asked about: pods that wait for one cause say the same."""


def objects_to_query(observed: Observed) -> tuple[EventSubject, ...]:
    """The objects whose events may tell why the run waits; none while nothing is out of the ordinary."""
    subjects = []
    trainer = observed.child(Kind.STATEFUL_SET, names.trainer(observed.run.key.name))
    if trainer is not None and missing_pods(observed):
        subjects.append(EventSubject("StatefulSet", trainer.meta.name, trainer.meta.uid))
    waiting = [pod for pod in observed.pods if pod.meta.deleted_at is None and pod.phase is PodPhase.PENDING]
    if any(pod.unscheduled and scheduler.read(pod.unscheduled).unbound for pod in waiting):
        claim = observed.child(Kind.CLAIM, claim_of(observed))
        uid = "" if claim is None else claim.meta.uid
        subjects.append(EventSubject("PersistentVolumeClaim", claim_of(observed), uid))
    starting = [EventSubject("Pod", pod.meta.name, pod.meta.uid) for pod in waiting if _is_being_set_up(pod)]
    return (*subjects, *starting[:MOST_PODS])


def missing_pods(observed: Observed) -> int:
    """Count the trainer pods that the StatefulSet's controller should have made and has not."""
    trainer = observed.child(Kind.STATEFUL_SET, names.trainer(observed.run.key.name))
    if trainer is None or trainer.meta.deleted_at is not None:
        return 0
    size = Memory.of(observed.run.status).gang_size
    wanted = trainer.desired if size is None else min(trainer.desired, size.pods)
    # A pod that is ending still has its name.
    return max(0, wanted - sum(1 for _ in observed.of(PodRole.TRAINER)) + len(observed.spares))


def absent_pods(observed: Observed) -> tuple[str, ...]:
    """Names of pods that should be there and are not: nobody can make them while others have these names."""
    run, memory = observed.run.key.name, Memory.of(observed.run.status)
    if memory.phase in WITHOUT_GANG or not memory.attempt:
        return ()
    prepared = memory.prepared == memory.attempt
    wanted = [names.orchestrator(run) if prepared else names.prepare(run, memory.attempt)]
    trainer = observed.child(Kind.STATEFUL_SET, names.trainer(run))
    if trainer is not None and missing_pods(observed):
        wanted += [f"{trainer.meta.name}-{index}" for index in range(trainer.desired)]
    present = {pod.meta.name for pod in observed.pods if pod.role is not None}
    return tuple(name for name in wanted if name not in present)[:MOST_PODS]


def is_stranger(pod: PodRecord, run: RunRecord) -> bool:
    """Whether a pod under a name of the run's is not one that the run's pods are found as."""
    return pod.meta.run_uid != run.uid or pod.role is None


def claim_of(observed: Observed) -> str:
    """The name of the claim that the run's pods mount."""
    named = observed.run.block("storage").get("claimName")
    return named if isinstance(named, str) and named else names.claim(observed.run.key.name)


def _is_being_set_up(pod: PodRecord) -> bool:
    """Whether a node has the pod and no container has begun: volumes and network come first, then images."""
    return bool(pod.node) and all(
        part.phase is ContainerPhase.WAITING and (not part.reason or part.reason in CREATING) for part in pod.containers
    )
