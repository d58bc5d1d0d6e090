"""The API server's objects, as far as records are made of them."""

from datetime import datetime
from typing import Any

import msgspec


class Base(msgspec.Struct, rename="camel", gc=False):
    """Keys as the API server spells them; what is not named is skipped."""


class Owner(Base):
    """One owner reference."""

    uid: str
    controller: bool = False


class Meta(Base):
    """``metadata``."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[Owner] | None = None


class Named(Base):
    """Anything with a name."""

    name: str


class Resources(Base):
    """``resources`` of a container."""

    requests: dict[str, str] | None = None


class Container(Named):
    """One of ``containers`` or ``initContainers``."""

    resources: Resources | None = None
    restart_policy: str = ""


class PodSpec(Base):
    """``spec`` of a pod."""

    node_name: str = ""
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    scheduling_gates: list[Named] | None = None
    node_selector: dict[str, str] | None = None


class Condition(Base):
    """One condition."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class Waiting(Base):
    """``state.waiting``."""

    reason: str = ""
    message: str = ""


class Running(Base):
    """``state.running``."""

    started_at: datetime | None = None


class Terminated(Base):
    """``state.terminated``."""

    exit_code: int = 0
    signal: int | None = None
    reason: str = ""
    message: str = ""
    finished_at: datetime | None = None


class State(Base):
    """``state`` of a container: one of the three is set."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Base):
    """One of ``containerStatuses``."""

    name: str
    state: State | None = None
    last_state: State | None = None
    ready: bool = False
    restart_count: int = 0


class PodStatus(Base):
    """``status`` of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class Pod(Base):
    """A pod, as far as records are made of it."""

    metadata: Meta
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class ChildStatus(Base):
    """``status`` of the kinds whose status matters."""

    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    phase: str = ""
    conditions: list[Condition] | None = None


class ChildSpec(Base):
    """``spec`` of these."""

    replicas: int = 1


class Scalable(Base):
    """A child whose status says something to us."""

    metadata: Meta
    spec: ChildSpec = msgspec.field(default_factory=ChildSpec)
    status: ChildStatus = msgspec.field(default_factory=ChildStatus)


class Plain(Base):
    """Any other child."""

    metadata: Meta


class ObjectReference(Base):
    """``involvedObject`` of an event."""

    kind: str = ""
    name: str = ""


class Series(Base):
    """``series`` of an event."""

    count: int = 0
    last_observed_time: datetime | None = None


class Event(Base):
    """An event of ``v1``; what was reported by ``events.k8s.io/v1`` has times in other places."""

    metadata: Meta
    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None
    series: Series | None = None
    reporting_component: str = ""


class Items(Base):
    """A list, its objects undecoded."""

    items: list[msgspec.Raw] | None = None


class Run(Base):
    """An EchoRLRun."""

    metadata: Meta
    spec: dict[str, Any] = {}
    status: dict[str, Any] | None = None
