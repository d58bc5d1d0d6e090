"""What stands in the way of a run's pods: the first cause that somebody can do something about."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from echorl_core import termination_message
from echorl_operator import names
from echorl_operator.diagnosis import refusals, sandboxes, scheduler
from echorl_operator.diagnosis.container_reasons import CONFIG, CRASH, PULL
from echorl_operator.diagnosis.durations import waited
from echorl_operator.diagnosis.event_queries import claim_of, missing_pods
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ChildRecord, ContainerPhase, ContainerRecord, Kind, PodPhase, PodRecord
from echorl_operator.observed.times import from_text
from echorl_operator.observed.warning_events import EventSubject, WarningEvent
from echorl_operator.observed.world import Observed
from echorl_operator.quantities import readable, value

_SETUP = {
    "FailedMount": "VolumeNotMounted",
    "FailedAttachVolume": "VolumeNotMounted",
    "FailedMapVolume": "VolumeNotMounted",
    "FailedCreatePodSandBox": "SandboxNotCreated",
}
"""Events of a pod whose containers cannot begin, and what is said of them."""
_SET_UP = frozenset({"Pulling", "Pulled", "Created", "Started"})
"""Events of a pod that is past that."""
_ENDING = "object is being deleted"
"""The pod before this one is not gone yet; that is no obstacle."""
_CLOCKS_DIFFER_S = 30.0
ORDER = (PodRole.PREPARE, PodRole.ENVIRONMENT, PodRole.ORCHESTRATOR, PodRole.TRAINER, PodRole.INFERENCE)
"""The order of roles: what comes first in an attempt holds up what comes later."""

Figures = Callable[[str, str], str]
"""A function that says, for a resource and what a pod wants of it, what is free: see ``capacity.words``."""


@dataclass(frozen=True)
class Obstacle:
    """Something that a run waits for and that does not go away by waiting alone."""

    reason: str
    """CamelCase, of a small fixed set."""
    message: str
    """Who, what, why, and since when."""


def first_obstacle(observed: Observed, figures: Figures | None = None) -> Obstacle | None:
    """The first thing in the way, by role and then by how early in a pod's life it is.

    Args:
        observed: the run's world.
        figures: what nodes have free; None where one may not look at nodes. The scheduler's words must do then.
    """
    return next(_obstacles(observed, figures), None)


def without_pods(observed: Observed) -> list[ChildRecord]:
    """Workloads whose controllers try in vain to make pods."""
    stuck = [child for child in observed.children if child.failure and child.kind is Kind.DEPLOYMENT]
    trainer = observed.child(Kind.STATEFUL_SET, names.trainer(observed.run.key.name))
    taken = any(pod.meta.name.rpartition("-")[0] == names.trainer(observed.run.key.name) for pod in _in_place(observed))
    if trainer is not None and (taken or any(_uncreated(observed))):
        stuck.append(trainer)
    return stuck


def refused(message: str) -> Obstacle:
    """What a write that the API server does not take means. ``message``: its error."""
    refusal = refusals.read(message)
    who = f"{refusal.object} cannot be created" if refusal.object else "the API server refuses a write"
    return Obstacle(refusal.reason, f"{who}: {refusal.words}")


def _obstacles(observed: Observed, figures: Figures | None) -> Iterator[Obstacle]:
    # Places that spares wait for hold up nothing.
    spares = observed.spares
    living = [pod for pod in observed.pods if pod.meta.deleted_at is None and not pod.ended and pod not in spares]
    yield from _taken(observed)
    yield from _full(observed)
    living = _without_followers(living)
    for role in ORDER:
        pods = [pod for pod in living if pod.role is role]
        if role is PodRole.TRAINER:
            yield from _uncreated(observed)
        yield from _unscheduled(observed, pods, figures)
        yield from _unprepared(observed, pods)
        for reasons, reason, what in (
            (PULL, "ImagePullFailed", "cannot get its image"),
            (CONFIG, "ContainerNotCreated", "cannot be started"),
            (CRASH, "CrashLoop", "ends again and again"),
        ):
            yield from _waiting(pods, reasons, reason, what, observed.now)
    yield from _without_pods(observed)
    if (waits := sandboxes.nothing_but_waiting(observed)) is not None:
        yield Obstacle(*waits)


def _in_place(observed: Observed) -> list[PodRecord]:
    """Strangers that are not ending by themselves."""
    return [pod for pod in observed.strangers if pod.meta.deleted_at is None]


def _taken(observed: Observed) -> Iterator[Obstacle]:
    """Names of the run's pods that others have. Controllers and the API server say nothing of it."""
    for pod in _in_place(observed):
        name, age = pod.meta.name, waited(observed.now - pod.meta.created_at)
        yield Obstacle(
            "NameTaken",
            f"{name} cannot be created: a pod of that name, {age} old, is not the run's (any more: it has lost the "
            f"labels or the owner that the run's pods have), and does not go with it; kubectl delete pod {name}",
        )


def _full(observed: Observed) -> Iterator[Obstacle]:
    """A volume without room, by the orchestrator's word."""
    state = observed.role_state
    if state is not None and state.volume_full and state.attempt == observed.run.status.get("attempt"):
        yield Obstacle("VolumeFull", f"the claim {claim_of(observed)} is full: {state.volume_full}")


def is_unscheduled(pod: PodRecord) -> bool:
    """Whether the scheduler has looked at the pod and found no node."""
    return bool(pod.unscheduled) and not pod.gated and pod.phase is PodPhase.PENDING


def _without_followers(pods: list[PodRecord]) -> list[PodRecord]:
    """Leave out pods that only wait to be beside others, as long as something else keeps these from every node."""
    stuck = [pod for pod in pods if is_unscheduled(pod)]
    followers = {pod.meta.uid for pod in stuck if scheduler.read(pod.unscheduled).follows}
    if len(followers) == len(stuck):
        return pods
    return [pod for pod in pods if pod.meta.uid not in followers]


def _unscheduled(observed: Observed, pods: list[PodRecord], figures: Figures | None) -> Iterator[Obstacle]:
    waiting = [pod for pod in pods if is_unscheduled(pod)]
    if not waiting:
        return
    first = waiting[0]
    verdict = scheduler.read(first.unscheduled)
    reason, why = "Unschedulable", why_nowhere(first, verdict, figures)
    if verdict.missing_claim:
        reason, why = "ClaimNotFound", f"there is no claim {verdict.missing_claim} in namespace {first.meta.namespace}"
    elif verdict.unbound:
        reason, why = "ClaimPending", _why_unbound(observed)
    who = _who(waiting, "cannot be scheduled")
    yield Obstacle(reason, f"{who}: {why}; waiting {waited(observed.now - waits_since(observed, first))}")


def why_nowhere(pod: PodRecord, verdict: scheduler.Verdict, figures: Figures | None) -> str:
    """Why no node takes the pod, in one clause."""
    why = _what_nodes_lack(pod, verdict, figures)
    if not (verdict.selects and pod.node_selector):
        return why
    labels = ", ".join(f"{key}={label}" for key, label in pod.node_selector)
    return f"{why}; its node selector is {labels}"


def _what_nodes_lack(pod: PodRecord, verdict: scheduler.Verdict, figures: Figures | None) -> str:
    wants = dict(pod.wants)
    short = [resource for resource in verdict.resources if resource in wants]
    if not short:
        return verdict.words
    if figures is None:
        asked = ", ".join(readable(resource, value(wants[resource])) for resource in short)
        return f"{asked} wanted; {verdict.words}"
    lacking = "; ".join(figures(resource, wants[resource]) for resource in short)
    others = ", ".join(group.words for group in verdict.unfit if group.resource not in short)
    return f"{lacking}; {others}" if others else lacking


def _why_unbound(observed: Observed) -> str:
    name = claim_of(observed)
    text = f"its claim {name} has no volume yet"
    events = observed.said_of(EventSubject("PersistentVolumeClaim", name))
    return f"{text} ({events[0].message})" if events else text


def waits_since(observed: Observed, pod: PodRecord) -> float:
    """Since when a pod waits: one of the gang is there long before it is let through to the scheduler."""
    if pod.role is not PodRole.TRAINER:
        return pod.meta.created_at
    begun = [
        since
        for entry in _of_attempt(observed)
        if entry.get("phase") == "Starting" and (since := from_text(entry.get("since"))) is not None
    ]
    return max([pod.meta.created_at, *begun[:1]])


def _of_attempt(observed: Observed) -> list[dict[str, object]]:
    """The current attempt's entries of the timeline."""
    status = observed.run.status
    return [entry for entry in status.get("timeline", ()) if entry.get("attempt") == status.get("attempt")]


def _uncreated(observed: Observed) -> Iterator[Obstacle]:
    """Trainer pods that are not even made."""
    missing = missing_pods(observed)
    if not missing:
        return
    begun = next((from_text(entry.get("since")) for entry in _of_attempt(observed)), None) or observed.run.created_at
    name = names.trainer(observed.run.key.name)
    events = [
        event
        for event in observed.said_of(EventSubject("StatefulSet", name))
        if event.reason == "FailedCreate" and event.last > begun - _CLOCKS_DIFFER_S and _ENDING not in event.message
    ]
    if events:
        refusal = refusals.read(events[0].message)
        since = waited(observed.now - max(begun, min(event.first for event in events)))
        pods = "pod" if missing == 1 else "pods"
        yield Obstacle(refusal.reason, f"{missing} trainer {pods} cannot be created: {refusal.words}; since {since}")


def _unprepared(observed: Observed, pods: list[PodRecord]) -> Iterator[Obstacle]:
    """Pods on a node whose volumes or network are not there; the pod itself says only ContainerCreating."""
    for pod in pods:
        if pod.phase is PodPhase.PENDING and (event := _setup_failure(observed, pod)) is not None:
            since = waited(observed.now - pod.meta.created_at)
            yield Obstacle(_SETUP[event.reason], f"{pod.meta.name} cannot be started: {event.message}; since {since}")


def _setup_failure(observed: Observed, pod: PodRecord) -> WarningEvent | None:
    if any(container.phase is not ContainerPhase.WAITING for container in pod.containers):
        return None
    events = observed.said_of(EventSubject("Pod", pod.meta.name))
    newest = next((event for event in events if event.reason in _SETUP or event.reason in _SET_UP), None)
    failed = newest is not None and newest.reason in _SETUP and newest.last >= pod.meta.created_at
    return newest if failed else None


def _waiting(pods: list[PodRecord], reasons: frozenset[str], reason: str, what: str, now: float) -> Iterator[Obstacle]:
    waiting = [(pod, container) for pod in pods for container in pod.containers if _is_waiting(container, reasons)]
    if waiting:
        pod, container = waiting[0]
        who = _who([pod for pod, _ in waiting], what)
        state = f"{container.reason}: {container.message}" if container.message else container.reason
        if container.last is not None:
            state = f"{state}; {_end(container.last)}"
        yield Obstacle(reason, f"{who}: {state}; since {waited(now - pod.meta.created_at)}")


def _end(last: ContainerRecord) -> str:
    """How the process ended, in its own words if it said any in our form."""
    words = termination_message.read(last.message)
    code = f"it ended with code {last.exit_code}"
    if last.reason not in ("", "Error", "Completed"):
        code = f"{code} ({last.reason})"
    return code if words is None or not words.message else f"{code}: {words.message}"


def _is_waiting(container: ContainerRecord, reasons: frozenset[str]) -> bool:
    return container.phase is ContainerPhase.WAITING and container.reason in reasons


def _without_pods(observed: Observed) -> Iterator[Obstacle]:
    """Engines that are not even made; a claim that is bound to nothing any more."""
    for child in observed.children:
        if child.failure:
            refusal = refusals.read(child.failure)
            yield Obstacle(refusal.reason, f"pods of {child.kind} {child.meta.name} cannot be created: {refusal.words}")
        if child.kind is Kind.CLAIM and child.phase == "Lost":
            yield Obstacle("VolumeLost", f"the claim {child.meta.name} has lost its volume")


def _who(pods: list[PodRecord], what: str) -> str:
    first, *others = dict.fromkeys(pod.meta.name for pod in pods)
    return f"{first} and {len(others)} more {what}" if others else f"{first} {what}"
