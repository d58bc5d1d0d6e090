"""What a sentence of ``echorl why`` rests on, a line each. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from echorl_core import termination_message
from echorl_operator import names
from echorl_operator.diagnosis import sandboxes
from echorl_operator.diagnosis.capacity import Room
from echorl_operator.diagnosis.durations import span
from echorl_operator.diagnosis.scheduler import read
from echorl_operator.observed.records import ContainerPhase, ContainerRecord, Kind, PodRecord
from echorl_operator.observed.times import from_text
from echorl_operator.observed.warning_events import WarningEvent
from echorl_operator.observed.world import Observed
from echorl_operator.quantities import readable
from echorl_operator.status.conditions import PROBLEMS, is_problem

MOST_LINES = 8
"""The most lines of one kind of evidence."""
_GOOD = ("Ready", "CheckpointCommitted", "OffPolicyBounded", "RewardSignal", "EpisodeInfrastructure", "GangWhole")
_LONGEST = 400


@dataclass(frozen=True)
class Evidence:
    """One thing that was seen."""

    kind: str
    """condition, notice, restarts, autoscale, pod, sandboxes, claim, nodes, event, lease or withheld."""
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
    pieces = [
        *_conditions(observed),
        *_notices(observed),
        *_restarts_in_place(observed),
        *_autoscaling(observed),
        *_pods(observed),
        *_sandboxes(observed),
        *_claims(observed),
        *_nodes(rooms),
        *_events(observed),
    ]
    pieces += _leases(leases, observed.now)
    if withheld:
        pieces.append(Evidence("withheld", "", f"not allowed to read {', '.join(sorted(withheld))}"))
    return pieces


def short_of(observed: Observed) -> tuple[str, ...]:
    """Resources that the scheduler finds too little of for a pod that wants them."""
    lacking = (
        resource
        for pod in observed.pods
        if pod.unscheduled and not pod.gated
        for resource in read(pod.unscheduled).resources
        if resource in dict(pod.wants)
    )
    return tuple(dict.fromkeys(lacking))


def _conditions(observed: Observed) -> Iterator[Evidence]:
    for condition in observed.run.status.get("conditions", ()):
        kind, holds = condition.get("type"), condition.get("status")
        if not (is_problem(condition) or (kind, holds) == ("Failed", "True") or (kind in _GOOD and holds == "False")):
            continue
        since = from_text(condition.get("lastTransitionTime"))
        ago = "" if since is None else f" since {span(observed.now - since)}"
        message = f": {_cut(condition['message'])}" if condition.get("message") else ""
        yield Evidence("condition", kind, f"{condition['status']}{ago}, {condition.get('reason', '')}{message}")


def _notices(observed: Observed) -> Iterator[Evidence]:
    told, count = observed.run.status.get("lastNotice"), observed.run.status.get("notices")
    if told:
        yield Evidence("notice", "", f"{_cut(told)}; {count} so far, which maxRestarts does not count")


def _restarts_in_place(observed: Observed) -> Iterator[Evidence]:
    control = observed.run.status.get("control") or {}
    if count := control.get("replacements"):
        text = (
            f"{count} with another pod in a lost one's place in this attempt; events PodLost and PodReplaced say which"
        )
        yield Evidence("restarts", "", text)
    if lost := control.get("replacing"):
        pods = ", ".join(f"{observed.run.key.name}-trainer-{index}" for index in sorted(lost, key=int))
        yield Evidence("restarts", "", f"the gang waits for another pod in the place of {pods}")
    if count := control.get("restartsInPlace"):
        text = f"{count} of the trainer's processes in place in this attempt; events RestartedInPlace say why"
        yield Evidence("restarts", "", text)


def _autoscaling(observed: Observed) -> Iterator[Evidence]:
    if why := (observed.run.status.get("inference") or {}).get("autoscale"):
        yield Evidence("autoscale", "", _cut(why))


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


def _sandboxes(observed: Observed) -> Iterator[Evidence]:
    if not sandboxes.are_pods(observed):
        return
    found = sandboxes.tally(observed)
    # Who has no pod, and what was lost, only the operator heard of.
    told = observed.run.status.get("sandboxes") or {}
    unmade = [entry for entry in told.get("waiting", ()) if entry.get("reason") in sandboxes.UNMADE]
    lost = told.get("lost") or {}
    if found.alive or found.starting or found.waiting or unmade or lost:
        classes = ", ".join(f"{loss} {count}" for loss, count in lost.items())
        yield Evidence(
            "sandboxes", "", f"{found.alive} alive, {found.starting} starting; lost so far: {classes or 'none'}"
        )
    for waits in found.waiting:
        yield Evidence("sandboxes", "", _cut(f"{waits.reason}: {waits.words}"))
    for entry in unmade:
        yield Evidence("sandboxes", "", _cut(f"{entry['reason']}: {entry['count']} wait: {entry['message']}"))


def _age(pod: PodRecord, now: float) -> str:
    return f"{span(now - pod.meta.created_at)} old"


def _state(pod: PodRecord, now: float) -> str:
    if pod.meta.deleted_at is not None:
        return f"ending, its grace period {'ended' if now > pod.meta.deleted_at else 'ends'} {_apart(pod, now)}"
    if pod.gated:
        return "held back until its gang is whole and prepared"
    if pod.unscheduled:
        return f"the scheduler: {_cut(pod.unscheduled)}"
    told = [text for container in pod.containers if (text := _container(container, now))]
    if pod.reason or pod.disrupted:
        told.insert(0, _cut(f"{pod.disrupted or pod.reason}: {pod.message}".strip(": ")))
    return "; ".join(told) or "not ready"


def _apart(pod: PodRecord, now: float) -> str:
    until = pod.meta.deleted_at or now
    return f"{span(now - until)} ago" if now > until else f"in {span(until - now)}"


def _container(record: ContainerRecord, now: float) -> str:
    restarts = f", {record.restarts} restarts" if record.restarts else ""
    ago = "" if record.since is None else f" {span(now - record.since)} ago"
    if record.phase is ContainerPhase.WAITING:
        return f"{record.name} waits: {_cut(f'{record.reason}: {record.message}'.strip(': '))}{restarts}"
    if record.phase is ContainerPhase.TERMINATED:
        ending = termination_message.read(record.message)
        words = _cut(ending.message if ending is not None else record.message.strip())
        return f"{record.name} ended{ago} with code {record.exit_code} ({record.reason}){': ' if words else ''}{words}"
    return "" if record.ready else f"{record.name} began{ago} and is not ready{restarts}"


def _claims(observed: Observed) -> Iterator[Evidence]:
    for child in observed.children:
        if child.kind is Kind.CLAIM and child.phase != "Bound":
            yield Evidence("claim", child.meta.name, child.phase or "new")


def _nodes(rooms: Mapping[str, Sequence[Room]]) -> Iterator[Evidence]:
    for resource, nodes in rooms.items():
        parts = [f"{room.node} {_amount(resource, room)}" for room in nodes[:MOST_LINES]]
        more = f", and {len(nodes) - MOST_LINES} more nodes" if len(nodes) > MOST_LINES else ""
        yield Evidence("nodes", f"with {resource}", f"{', '.join(parts) or 'none takes pods'}{more}")


def _amount(resource: str, room: Room) -> str:
    free, whole = (readable(resource, part).removesuffix(resource).strip() for part in (room.free, room.allocatable))
    return f"{free} of {whole} free"


def _events(observed: Observed) -> Iterator[Evidence]:
    newest = sorted(filter(_is_news, observed.warning_events), key=lambda event: event.last, reverse=True)
    for event in newest[:MOST_LINES]:
        times = f" x{event.count}" if event.count > 1 else ""
        text = f"{event.reason}{times}, {span(observed.now - event.last)} ago: {_cut(event.message)}"
        yield Evidence("event", str(event.subject), text)


def _is_news(event: WarningEvent) -> bool:
    """Whether an event says what neither the run's phase nor a condition of its does."""
    return event.subject.kind != names.KIND or (event.type != "Normal" and event.reason not in PROBLEMS)


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
