"""What stands in the way of a run's pods: the first cause that somebody can do something about."""

from collections.abc import Iterator
from dataclasses import dataclass

from echorl_operator.names import PodRole
from echorl_operator.observed.records import ChildRecord, ContainerPhase, ContainerRecord, Kind, PodPhase, PodRecord
from echorl_operator.observed.world import Observed

_PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"})
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_CRASH = frozenset({"CrashLoopBackOff"})
ORDER = (PodRole.PREPARE, PodRole.ORCHESTRATOR, PodRole.TRAINER, PodRole.INFERENCE)
"""Of roles: what comes first in an attempt holds up what comes later."""


@dataclass(frozen=True)
class Obstacle:
    """Something that a run waits for and that does not go away by waiting alone."""

    reason: str
    """CamelCase, of a small fixed set."""
    message: str
    """Who, what, why, and since when."""


def first_obstacle(observed: Observed) -> Obstacle | None:
    """The first thing in the way, by role and then by how early in a pod's life it is."""
    living = [pod for pod in observed.pods if pod.meta.deleted_at is None and not pod.ended]
    for role in ORDER:
        pods = [pod for pod in living if pod.role is role]
        for look in (_unscheduled, _unpulled, _unconfigured, _crashing):
            if (found := look(pods, observed.now)) is not None:
                return found
    return next(_without_pods(observed), None)


def _unscheduled(pods: list[PodRecord], now: float) -> Obstacle | None:
    waiting = [pod for pod in pods if pod.unscheduled and not pod.gated and pod.phase is PodPhase.PENDING]
    if not waiting:
        return None
    first = waiting[0]
    who = _who(waiting, "cannot be scheduled")
    return Obstacle("Unschedulable", f"{who}: {first.unscheduled}; waiting {_span(now - first.meta.created_at)}")


def _unpulled(pods: list[PodRecord], now: float) -> Obstacle | None:
    return _waiting(pods, _PULL, "ImagePullFailed", "cannot get its image", now)


def _unconfigured(pods: list[PodRecord], now: float) -> Obstacle | None:
    return _waiting(pods, _CONFIG, "ContainerNotCreated", "cannot be started", now)


def _crashing(pods: list[PodRecord], now: float) -> Obstacle | None:
    return _waiting(pods, _CRASH, "CrashLoop", "ends again and again", now)


def _waiting(pods: list[PodRecord], reasons: frozenset[str], reason: str, what: str, now: float) -> Obstacle | None:
    found = [(pod, container) for pod in pods for container in pod.containers if _is_waiting(container, reasons)]
    if not found:
        return None
    pod, container = found[0]
    who = _who([one for one, _ in found], what)
    said = f"{container.reason}: {container.message}" if container.message else container.reason
    return Obstacle(reason, f"{who}: {said}; since {_span(now - pod.meta.created_at)}")


def _is_waiting(container: ContainerRecord, reasons: frozenset[str]) -> bool:
    return container.phase is ContainerPhase.WAITING and container.reason in reasons


def _without_pods(observed: Observed) -> Iterator[Obstacle]:
    """Pods that are not even made: quota, admission; a claim that is bound to nothing."""
    for child in observed.children:
        if child.failure:
            yield Obstacle("PodsRefused", f"{_short(child)}: {child.failure}")
        if child.kind is Kind.CLAIM and child.phase == "Lost":
            yield Obstacle("VolumeLost", f"the claim {child.meta.name} has lost its volume")


def _short(child: ChildRecord) -> str:
    return f"{child.kind} {child.meta.name}"


def _who(pods: list[PodRecord], what: str) -> str:
    names = list(dict.fromkeys(pod.meta.name for pod in pods))
    return f"{names[0]} {what}" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more: {what}"


def _span(seconds: float) -> str:
    """``40 s``, ``4 min``, ``3 h``: minutes and hours rounded down, so that a message rarely changes."""
    if seconds < 60:
        return "less than a minute"
    return f"{int(seconds // 60)} min" if seconds < 7200 else f"{int(seconds // 3600)} h"
