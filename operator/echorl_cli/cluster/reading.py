"""Reads what a run's state can be told from, with the user's rights: what may not be read is left out, and named."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from echorl_cli.cluster.access import Cluster
from echorl_operator import names
from echorl_operator.diagnosis.capacity import Node, Room, rooms
from echorl_operator.diagnosis.event_queries import absent_pods, claim_of, is_stranger, objects_to_query
from echorl_operator.kube import errors
from echorl_operator.kube.pods_by_name import read_pod
from echorl_operator.kube.resources import CHILDREN, CORE_EVENT, LEASE, POD, Resource
from echorl_operator.kube.warning_events import read_events
from echorl_operator.observed import decode
from echorl_operator.observed.records import ChildRecord, Kind, PodPhase, PodRecord
from echorl_operator.observed.warning_events import EventSubject, WarningEvent
from echorl_operator.observed.world import Observed
from echorl_operator.process import LEASE_NAME
from echorl_operator.settings import Settings

NODE = Resource("v1", "Node", "nodes")
MOST_PODS = 3
"""Pods whose events are read besides those that hold the run up."""
_KINDS = {resource.kind: resource for resource in CHILDREN}
_READ = (Kind.STATEFUL_SET, Kind.DEPLOYMENT, Kind.CLAIM)

T = TypeVar("T")


@dataclass(frozen=True)
class Nodes:
    """Nodes of the cluster, and what pods on them have asked for: by resource and node."""

    nodes: tuple[Node, ...]
    used: dict[str, dict[str, list[str]]]

    def rooms(self, resource: str) -> list[Room]:
        """Where there is room for one resource."""
        return rooms(resource, self.nodes, self.used.get(resource, {}))


async def observe(cluster: Cluster, run: dict[str, Any]) -> Observed:
    """A run's pods, workloads, claim and the events of what is wrong. ``run``: its object."""
    record = decode.run_from_object(run)
    of_run = f"{names.LABEL_RUN_UID}={record.uid}"
    selector = {"labelSelector": of_run}
    pods, sandboxes, children = await asyncio.gather(
        _pods(cluster, f"{of_run},{names.LABEL_ROLE}!={names.SANDBOX}"),
        _pods(cluster, f"{of_run},{names.SANDBOXES}"),
        asyncio.gather(*(_children(cluster, kind, selector) for kind in _READ)),
    )
    observed = Observed(
        run=record,
        pods=pods,
        sandboxes=sandboxes,
        children=tuple(child for of_kind in children for child in of_kind),
        departed=(),
        role_state=None,
        refusal="",
        now=time.time(),
    )
    observed = await _with_strangers(cluster, await _with_named_claim(cluster, observed))
    return await _with_events(cluster, observed)


async def _pods(cluster: Cluster, selector: str) -> tuple[PodRecord, ...]:
    bodies = await _allowed(cluster, POD, cluster.objects(POD, {"labelSelector": selector}), [])
    return tuple(sorted((decode.pod(body) for body in bodies), key=lambda pod: pod.meta.name))


async def leases(cluster: Cluster) -> list[dict[str, Any]]:
    """Leases of operators that may look after the namespace."""
    places = (cluster.namespace, str(Settings.model_fields["operator_namespace"].default))
    bodies = await asyncio.gather(
        *(_allowed(cluster, LEASE, cluster.get(LEASE, LEASE_NAME, place), b"") for place in dict.fromkeys(places))
    )
    return [json.loads(body) for body in bodies if body]


async def nodes(cluster: Cluster) -> Nodes | None:
    """All nodes and what is asked for on them; None where the user may not look."""
    bodies = await _allowed(cluster, NODE, cluster.objects(NODE, everywhere=True), [])
    pods = await _allowed(cluster, POD, _bound(cluster), None) if bodies else None
    if pods is None:
        return None
    used: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for pod in pods:
        for resource, amount in pod.wants:
            used[resource][pod.node].append(amount)
    return Nodes(tuple(_node(json.loads(body)) for body in bodies), used)


async def _bound(cluster: Cluster) -> list[PodRecord] | None:
    selector = {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
    return [decode.pod(body) for body in await cluster.objects(POD, selector, everywhere=True)]


async def _children(cluster: Cluster, kind: Kind, selector: dict[str, str]) -> list[ChildRecord]:
    resource = _KINDS[kind]
    bodies = await _allowed(cluster, resource, cluster.objects(resource, selector), [])
    return [decode.child(kind, body) for body in bodies]


async def _with_named_claim(cluster: Cluster, observed: Observed) -> Observed:
    """A claim that the user made carries no label of ours."""
    name = claim_of(observed)
    if observed.child(Kind.CLAIM, name) is not None:
        return observed
    resource = _KINDS[Kind.CLAIM]
    body = await _allowed(cluster, resource, cluster.get(resource, name), b"")
    if not body:
        return observed
    return replace(observed, children=(*observed.children, decode.child(Kind.CLAIM, body)))


async def _with_strangers(cluster: Cluster, observed: Observed) -> Observed:
    """Pods that have lost our labels are found by their names."""
    answers = await asyncio.gather(
        *(
            _allowed(cluster, POD, read_pod(cluster.connection, cluster.namespace, name), ())
            for name in absent_pods(observed)
        )
    )
    strangers = (pod for pods in answers for pod in pods if is_stranger(pod, observed.run))
    return replace(observed, strangers=tuple(strangers))


async def _with_events(cluster: Cluster, observed: Observed) -> Observed:
    subjects = dict.fromkeys(
        (
            *objects_to_query(observed),
            *_unready(observed.pods),
            EventSubject(names.KIND, observed.run.key.name, observed.run.uid),
        )
    )
    answers: Sequence[tuple[WarningEvent, ...]] = await asyncio.gather(
        *(
            _allowed(cluster, CORE_EVENT, read_events(cluster.connection, cluster.namespace, subject), ())
            for subject in subjects
        )
    )
    return replace(observed, warning_events=tuple(event for events in answers for event in events))


def _unready(pods: Sequence[PodRecord]) -> list[EventSubject]:
    waiting = [pod for pod in pods if not pod.ready and not pod.ended and not pod.gated]
    waiting.sort(key=lambda pod: pod.phase is not PodPhase.PENDING)
    return [EventSubject("Pod", pod.meta.name, pod.meta.uid) for pod in waiting[:MOST_PODS]]


async def _allowed(cluster: Cluster, resource: Resource, reading: Awaitable[T], otherwise: T) -> T:
    """What is read; ``otherwise`` if there is none, or the user may not read it."""
    try:
        return await reading
    except errors.NotFound:
        return otherwise
    except errors.Forbidden:
        cluster.withheld.add(resource.plural)
        return otherwise


def _node(body: dict[str, Any]) -> Node:
    status = body.get("status") or {}
    ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in status.get("conditions") or ())
    cordoned = bool((body.get("spec") or {}).get("unschedulable"))
    return Node(body["metadata"]["name"], status.get("allocatable") or {}, schedulable=ready and not cordoned)
