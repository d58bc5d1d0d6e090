"""Decodes the API server's JSON into records, by types: what no record keeps is skipped and never becomes objects."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from sys import intern
from typing import Any

import msgspec

from echorl_operator import names
from echorl_operator.names import PodRole
from echorl_operator.observed import shapes
from echorl_operator.observed.records import (
    ChildRecord,
    ContainerPhase,
    ContainerRecord,
    Kind,
    Meta,
    PodPhase,
    PodRecord,
)
from echorl_operator.observed.runs import RunKey, RunRecord
from echorl_operator.observed.warning_events import EventSubject, WarningEvent
from echorl_operator.quantities import value

MESSAGE_LIMIT = 4096
"""Characters of a container's message that are kept; the kubelet cuts termination messages there too."""

_POD_INDEX = "apps.kubernetes.io/pod-index"
_LONGEST_COUNT = 15
"""Digits of a label's number; the API server takes no integer of 64 bits and more back."""

_POD = msgspec.json.Decoder(shapes.Pod)
_SCALABLE = msgspec.json.Decoder(shapes.Scalable)
_PLAIN = msgspec.json.Decoder(shapes.Plain)
_RUN = msgspec.json.Decoder(shapes.Run)
_ITEMS = msgspec.json.Decoder(shapes.Items)
_EVENT = msgspec.json.Decoder(shapes.Event)
_TOP = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PHASES: dict[str, PodPhase] = {phase.value: phase for phase in PodPhase}
_ROLES: dict[str, PodRole] = {role.value: role for role in PodRole}
_WITH_STATUS = frozenset({Kind.STATEFUL_SET, Kind.DEPLOYMENT, Kind.CLAIM})


def pod(body: bytes) -> PodRecord:
    """A pod from its JSON.

    Raises:
        msgspec.MsgspecError: it is no pod.
    """
    shape = _POD.decode(body)
    labels, status = shape.metadata.labels or {}, shape.status
    conditions = {condition.type: condition for condition in status.conditions or ()}
    ready, disruption = _true(conditions, "Ready"), _true(conditions, "DisruptionTarget")
    return PodRecord(
        meta=_meta(shape.metadata),
        role=_role(shape.metadata.name, labels),
        attempt=_count(labels.get(names.LABEL_ATTEMPT)) or 0,
        index=_count(labels.get(_POD_INDEX)),
        phase=_PHASES.get(status.phase, PodPhase.UNKNOWN),
        reason=intern(status.reason),
        message=status.message[:MESSAGE_LIMIT],
        gated=any(gate.name == names.SCHEDULING_GATE for gate in shape.spec.scheduling_gates or ()),
        node=intern(shape.spec.node_name),
        ip=status.pod_ip,
        unscheduled=_unscheduled(conditions.get("PodScheduled")),
        ready=ready is not None,
        ready_since=None if ready is None else _seconds(ready.last_transition_time),
        disrupted="" if disruption is None else intern(disruption.reason),
        containers=(
            *_containers(shape.spec.init_containers, status.init_container_statuses),
            *_containers(shape.spec.containers, status.container_statuses),
        ),
        wants=_wants(shape.spec),
        node_selector=_pairs(tuple(sorted((shape.spec.node_selector or {}).items()))),
        warm=names.LABEL_WARM in labels and names.LABEL_CLAIM not in labels,
        claimed=names.LABEL_CLAIM in labels,
    )


def child(kind: Kind, body: bytes) -> ChildRecord:
    """A child that is no pod from its JSON; of a Secret nothing but its identity is kept.

    Raises:
        msgspec.MsgspecError: it is no such object.
    """
    if kind not in _WITH_STATUS:
        meta = _meta(_PLAIN.decode(body).metadata)
        return ChildRecord(kind=kind, meta=meta, body=b"" if kind is Kind.SECRET else _comparable(body))
    shape = _SCALABLE.decode(body)
    status = shape.status
    conditions = {condition.type: condition for condition in status.conditions or ()}
    failure = _true(conditions, "ReplicaFailure")
    return ChildRecord(
        kind=kind,
        meta=_meta(shape.metadata),
        body=_comparable(body),
        observed_generation=status.observed_generation,
        desired=0 if kind is Kind.CLAIM else shape.spec.replicas,
        replicas=status.replicas,
        ready=status.ready_replicas,
        updated=status.updated_replicas,
        phase=intern(status.phase),
        failure="" if failure is None else failure.message,
    )


def items(body: bytes) -> list[bytes]:
    """Each object's JSON of a list.

    Raises:
        msgspec.MsgspecError: it is no list of objects.
    """
    return [bytes(item) for item in _ITEMS.decode(body).items or ()]


def warning_event(body: bytes) -> WarningEvent:
    """An event of ``v1`` from its JSON.

    Raises:
        msgspec.MsgspecError: it is no event.
    """
    shape = _EVENT.decode(body)
    series = shape.series or shapes.Series()
    made = shape.event_time or shape.metadata.creation_timestamp
    return WarningEvent(
        subject=EventSubject(intern(shape.involved_object.kind), shape.involved_object.name),
        type=intern(shape.type),
        reason=intern(shape.reason),
        message=shape.message[:MESSAGE_LIMIT].strip(),
        count=max(1, shape.count or 0, series.count),
        first=_seconds(shape.first_timestamp or made) or 0.0,
        last=_seconds(series.last_observed_time or shape.last_timestamp or made) or 0.0,
        source=intern(shape.reporting_component),
    )


def run(body: bytes) -> RunRecord:
    """An EchoRLRun from its JSON.

    Raises:
        msgspec.MsgspecError: it is no such object.
    """
    return _run(_RUN.decode(body))


def run_from_object(body: Mapping[str, Any]) -> RunRecord:
    """Make a run's record from an object that is decoded. ``spec`` and the parts of ``status`` are not copied."""
    return _run(msgspec.convert(dict(body), shapes.Run))


def _run(shape: shapes.Run) -> RunRecord:
    meta = shape.metadata
    return RunRecord(
        key=RunKey(meta.namespace, meta.name),
        uid=meta.uid,
        resource_version=meta.resource_version,
        generation=meta.generation,
        created_at=_seconds(meta.creation_timestamp) or 0.0,
        deleted_at=_seconds(meta.deletion_timestamp),
        labels=meta.labels or {},
        annotations=meta.annotations or {},
        spec=shape.spec,
        # Null, which only others than the operator write there, means the same as a field that is left out.
        status={key: part for key, part in (shape.status or {}).items() if part is not None},
    )


def _meta(shape: shapes.Meta) -> Meta:
    labels = shape.labels or {}
    return Meta(
        namespace=intern(shape.namespace),
        name=shape.name,
        uid=shape.uid,
        resource_version=shape.resource_version,
        generation=shape.generation,
        run_uid=intern(labels.get(names.LABEL_RUN_UID, "")),
        owner_uid=intern(next((owner.uid for owner in shape.owner_references or () if owner.controller), "")),
        created_at=_seconds(shape.creation_timestamp) or 0.0,
        deleted_at=_seconds(shape.deletion_timestamp),
        run=intern(labels.get(names.LABEL_RUN, "")),
    )


def _containers(
    declared: Sequence[shapes.Container] | None, statuses: Iterable[shapes.ContainerStatus] | None
) -> Iterable[ContainerRecord]:
    """Containers in the pod's order; the kubelet reports them sorted by name. One without a status yet is left out."""
    by_name = {status.name: status for status in statuses or ()}
    return (_container(by_name[container.name]) for container in declared or () if container.name in by_name)


def _container(status: shapes.ContainerStatus) -> ContainerRecord:
    state = status.state or shapes.State()
    phase, reason, message, since = ContainerPhase.WAITING, "", "", None
    if state.terminated is not None:
        ended = state.terminated
        phase, reason, message = ContainerPhase.TERMINATED, ended.reason, ended.message
        since = _seconds(ended.finished_at)
    elif state.running is not None:
        phase, since = ContainerPhase.RUNNING, _seconds(state.running.started_at)
    elif state.waiting is not None:
        reason, message = state.waiting.reason, state.waiting.message
    return ContainerRecord(
        name=intern(status.name),
        phase=phase,
        reason=intern(reason),
        message=message[:MESSAGE_LIMIT],
        exit_code=None if state.terminated is None else state.terminated.exit_code,
        signal=None if state.terminated is None else state.terminated.signal or None,
        restarts=status.restart_count,
        ready=status.ready,
        since=since,
        last=_last(status),
    )


def _last(status: shapes.ContainerStatus) -> ContainerRecord | None:
    if status.last_state is None or status.last_state.terminated is None:
        return None
    ended = shapes.ContainerStatus(status.name, shapes.State(terminated=status.last_state.terminated))
    return _container(ended)


_Requests = tuple[tuple[str, str], ...]


@lru_cache(maxsize=1024)
def _pairs(pairs: _Requests) -> _Requests:
    """The same object for pods of one gang."""
    return pairs


def _wants(spec: shapes.PodSpec) -> _Requests:
    side = [container for container in spec.init_containers or () if container.restart_policy == "Always"]
    first = [container for container in spec.init_containers or () if container.restart_policy != "Always"]
    together = tuple(_requests(container) for container in (*(spec.containers or ()), *side))
    return _sum(together, tuple(_requests(container) for container in first))


def _requests(container: shapes.Container) -> _Requests:
    requests = container.resources and container.resources.requests
    return tuple(sorted((intern(name), amount) for name, amount in requests.items())) if requests else ()


@lru_cache(maxsize=1024)
def _sum(together: tuple[_Requests, ...], first: tuple[_Requests, ...]) -> _Requests:
    """What containers that run together need, or the largest of those that run before them.

    Pods of one gang get the same object.
    """
    sums: dict[str, str] = {}
    for name, amount in (request for requests in together for request in requests):
        sums[name] = _added(sums[name], amount) if name in sums else amount
    for name, amount in (request for requests in first for request in requests):
        if name not in sums or value(amount) > value(sums[name]):
            sums[name] = amount
    return tuple(sorted(sums.items()))


def _added(amount: str, other: str) -> str:
    thousandths = (value(amount) + value(other)) * 1000
    return f"{-(-thousandths.numerator // thousandths.denominator)}m"


def _unscheduled(condition: shapes.Condition | None) -> str:
    if condition is None or condition.status != "False" or condition.reason == "SchedulingGated":
        return ""
    return condition.message or condition.reason


def _true(conditions: Mapping[str, shapes.Condition], kind: str) -> shapes.Condition | None:
    condition = conditions.get(kind)
    return condition if condition is not None and condition.status == "True" else None


def _count(label: str | None) -> int | None:
    """A label's number from 0; None if it is none, or none that anything here could count to."""
    if label is None or len(label) > _LONGEST_COUNT or not (label.isascii() and label.isdigit()):
        return None
    return int(label)


def _role(name: str, labels: Mapping[str, str]) -> PodRole | None:
    """What a pod does by its label; None if it has another name than the run's pods of that role: it is a copy.

    Labels are anybody's to write, and to copy. Of a name there is one in a namespace, and it cannot be changed.
    """
    role, run = _ROLES.get(labels.get(names.LABEL_ROLE, "")), labels.get(names.LABEL_RUN)
    if role is None or run is None:
        return role
    if role is PodRole.ORCHESTRATOR:
        return role if name == names.orchestrator(run) else None
    # Names of a Deployment's pods are made up, and cut where they are long.
    numbered = role in (PodRole.INFERENCE, PodRole.ENVIRONMENT) or name.rpartition("-")[0] == f"{run}-{role}"
    return role if numbered else None


def _seconds(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()


def _comparable(body: bytes) -> bytes:
    """The object without its status and managed fields."""
    top = _TOP.decode(body)
    top.pop("status", None)
    metadata = _TOP.decode(top["metadata"])
    metadata.pop("managedFields", None)
    top["metadata"] = msgspec.Raw(msgspec.json.encode(metadata))
    return msgspec.json.encode(top)
