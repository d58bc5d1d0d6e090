"""What a sentence of ``echorl why`` rests on, a line each. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from echorl_core import termination_message
from echorl_operator import names
from echorl_operator.diagnosis.capacity import Room
from echorl_operator.diagnosis.durations import span
from echorl_operator.diagnosis.scheduler import read
from echorl_operator.observed.records import ContainerPhase, ContainerRecord, Kind, PodRecord
from echorl_operator.observed.times import from_text
from echorl_operator.observed.warning_events import WarningEvent
from echorl_operator.observed.world import Observed
from echorl_operator.quantities import readable
from echorl_operator.status.conditions import PROBLEMS

MOST_LINES = 8
"""The most lines of one kind of evidence."""
_GOOD = ("Ready", "CheckpointCommitted", "OffPolicyBounded", "RewardSignal", "EpisodeInfrastructure")
_LONGEST = 400


@dataclass(frozen=True)
class Evidence:
    """One thing that was seen."""

    kind: str
    """condition, pod, claim, nodes, event, lease or withheld."""
    of: str
    """Name of the object that the line is about."""
    text: str

    def __str__(self) -> str:
        return f"{self.kind} {self.of}: {self.text}" if self.of else f"{self.kind}: {self.text}"


def evidence(
    observed: Observed,
    rooms: Mapping[str, Sequence[Room]],
    leases: Sequence[Mapping[str, Any]],
    withheld: Sequence[str],
) -> list[Evidence]:
    """Everything out of the ordinary, bounded.

    Args:
        observed: the run and what is there of it.
        rooms: by resource that pods wait for, which nodes have it.
        leases: of operators.
        withheld: what the user may not read.
    """
    found = [*_conditions(observed), *_pods(observed), *_claims(observed), *_nodes(rooms), *_events(observed)]
    found += _leases(leases, observed.now)
    if withheld:
        found.append(Evidence("withheld", "", f"not allowed to read {', '.join(sorted(withheld))}"))
    return found


def short_of(observed: Observed) -> tuple[str, ...]:
    """Resources that the scheduler finds too little of for a pod that wants them."""
    found = (
        resource
        for pod in observed.pods
        if pod.unscheduled and not pod.gated
        for resource in read(pod.unscheduled).resources
        if resource in dict(pod.wants)
    )
    return tuple(dict.fromkeys(found))


def _conditions(observed: Observed) -> Iterator[Evidence]:
    for one in observed.run.status.get("conditions", ()):
        bad = "True" if one.get("type") in (*PROBLEMS, "Failed") else "False" if one.get("type") in _GOOD else None
        if one.get("status") != bad:
            continue
        since = from_text(one.get("lastTransitionTime"))
        ago = "" if since is None else f" since {span(observed.now - since)}"
        message = f": {_cut(one['message'])}" if one.get("message") else ""
        yield Evidence("condition", one["type"], f"{one['status']}{ago}, {one.get('reason', '')}{message}")


def _pods(observed: Observed) -> Iterator[Evidence]:
    odd = [pod for pod in observed.pods if not pod.ready or pod.meta.deleted_at is not None]
    for pod in odd[:MOST_LINES]:
        where = f" on {pod.node}" if pod.node else ""
        yield Evidence(
            "pod", pod.meta.name, f"{pod.phase}{where}, {_age(pod, observed.now)}; {_state(pod, observed.now)}"
        )
    if len(odd) > MOST_LINES:
        yield Evidence("pods", "", f"{len(odd) - MOST_LINES} more are not ready")
    for pod in observed.strangers:
        where = f" on {pod.node}" if pod.node else ""
        yield Evidence("pod", pod.meta.name, f"not the run's: {pod.phase}{where}, {_age(pod, observed.now)}")


def _age(pod: PodRecord, now: float) -> str:
    return f"{span(now - pod.meta.created_at)} old"


def _state(pod: PodRecord, now: float) -> str:
    if pod.meta.deleted_at is not None:
        return f"ending, its grace period {'ended' if now > pod.meta.deleted_at else 'ends'} {_apart(pod, now)}"
    if pod.gated:
        return "held back until its gang is whole and prepared"
    if pod.unscheduled:
        return f"the scheduler: {_cut(pod.unscheduled)}"
    told = [text for one in pod.containers if (text := _container(one, now))]
    if pod.reason or pod.disrupted:
        told.insert(0, _cut(f"{pod.disrupted or pod.reason}: {pod.message}".strip(": ")))
    return "; ".join(told) or "not ready"


def _apart(pod: PodRecord, now: float) -> str:
    until = pod.meta.deleted_at or now
    return f"{span(now - until)} ago" if now > until else f"in {span(until - now)}"


def _container(one: ContainerRecord, now: float) -> str:
    restarts = f", {one.restarts} restarts" if one.restarts else ""
    ago = "" if one.since is None else f" {span(now - one.since)} ago"
    if one.phase is ContainerPhase.WAITING:
        return f"{one.name} waits: {_cut(f'{one.reason}: {one.message}'.strip(': '))}{restarts}"
    if one.phase is ContainerPhase.TERMINATED:
        said = termination_message.read(one.message)
        words = said.message if said is not None else one.message.strip()
        return f"{one.name} ended{ago} with code {one.exit_code} ({one.reason}){': ' if words else ''}{_cut(words)}"
    return "" if one.ready else f"{one.name} began{ago} and is not ready{restarts}"


def _claims(observed: Observed) -> Iterator[Evidence]:
    for child in observed.children:
        if child.kind is Kind.CLAIM and child.phase != "Bound":
            yield Evidence("claim", child.meta.name, child.phase or "new")


def _nodes(rooms: Mapping[str, Sequence[Room]]) -> Iterator[Evidence]:
    for resource, found in rooms.items():
        parts = [f"{room.node} {_amount(resource, room)}" for room in found[:MOST_LINES]]
        more = f", and {len(found) - MOST_LINES} more nodes" if len(found) > MOST_LINES else ""
        yield Evidence("nodes", f"with {resource}", f"{', '.join(parts) or 'none takes pods'}{more}")


def _amount(resource: str, room: Room) -> str:
    free, whole = (readable(resource, part).removesuffix(resource).strip() for part in (room.free, room.allocatable))
    return f"{free} of {whole} free"


def _events(observed: Observed) -> Iterator[Evidence]:
    newest = sorted(filter(_is_news, observed.warning_events), key=lambda one: one.last, reverse=True)
    for one in newest[:MOST_LINES]:
        times = f" x{one.count}" if one.count > 1 else ""
        text = f"{one.reason}{times}, {span(observed.now - one.last)} ago: {_cut(one.message)}"
        yield Evidence("event", str(one.subject), text)


def _is_news(one: WarningEvent) -> bool:
    """Whether an event says what neither the run's phase nor a condition of its does."""
    return one.subject.kind != names.KIND or (one.type != "Normal" and one.reason not in PROBLEMS)


def _leases(leases: Sequence[Mapping[str, Any]], now: float) -> Iterator[Evidence]:
    for lease in leases:
        spec, meta = lease.get("spec") or {}, lease["metadata"]
        renewed = from_text(spec.get("renewTime"))
        ago = "never renewed" if renewed is None else f"renewed {span(now - renewed)} ago"
        holder = spec.get("holderIdentity") or "nobody"
        yield Evidence("lease", f"{meta.get('namespace', '')}/{meta['name']}", f"held by {holder}, {ago}")


def _cut(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= _LONGEST else f"{one_line[: _LONGEST - 3]}..."
