"""Children of runs, projected from the API server's objects as they are decoded.

A record keeps what decisions rest on, not the object: a pod takes at most 2 KB. Times are seconds since the epoch, UTC,
as the API server writes them.
"""

from dataclasses import dataclass
from enum import StrEnum

from echorl_operator.names import PodRole


class Kind(StrEnum):
    """Kinds of children, besides Pod, that are watched."""

    STATEFUL_SET = "StatefulSet"
    DEPLOYMENT = "Deployment"
    SERVICE = "Service"
    CONFIG_MAP = "ConfigMap"
    SECRET = "Secret"  # noqa: S105 - a kind of object
    SERVICE_ACCOUNT = "ServiceAccount"
    CLAIM = "PersistentVolumeClaim"
    NETWORK_POLICY = "NetworkPolicy"
    DISRUPTION_BUDGET = "PodDisruptionBudget"
    REVISION = "ControllerRevision"


@dataclass(frozen=True, slots=True)
class Meta:
    """Identity of one object."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    """0 for kinds that have none."""
    run_uid: str
    """Label ``echorl.dev/run-uid``; empty if it has none."""
    owner_uid: str
    """Uid of the controlling owner; empty if there is none."""
    created_at: float
    deleted_at: float | None
    """``deletionTimestamp``: when its grace period ends. None: it is not being deleted."""
    run: str = ""
    """Label ``echorl.dev/run``; empty if it has none."""


class ContainerPhase(StrEnum):
    """What a container does."""

    WAITING = "waiting"
    RUNNING = "running"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """One container of a pod, init containers included."""

    name: str
    phase: ContainerPhase
    reason: str
    """Reason of a waiting or terminated container (``ImagePullBackOff``, ``OOMKilled``); else empty."""
    message: str
    """Message of a waiting container; of a terminated one its termination message, at most 4 KiB."""
    exit_code: int | None
    signal: int | None
    restarts: int
    ready: bool
    since: float | None
    """Start of a running container, end of a terminated one."""
    last: "ContainerRecord | None" = None
    """How its process ended before the kubelet started it again, or waits to; terminated. None: it is the first."""


class PodPhase(StrEnum):
    """``status.phase``."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One pod of a run."""

    meta: Meta
    role: PodRole | None
    """Label ``echorl.dev/role``; None if it is none of ours."""
    attempt: int
    """Label ``echorl.dev/attempt``; 0 if it has none (engines outlive attempts)."""
    index: int | None
    """Ordinal of a StatefulSet's pod."""
    phase: PodPhase
    reason: str
    """``status.reason``: ``Evicted``, ``NodeLost`` ..."""
    message: str
    gated: bool
    """It holds our scheduling gate."""
    node: str
    """Empty while it has none."""
    ip: str
    unscheduled: str
    """Message of a false ``PodScheduled`` condition with another reason than the gate; empty if there is none."""
    ready: bool
    ready_since: float | None
    disrupted: str
    """Reason of a true ``DisruptionTarget`` condition; empty if there is none."""
    containers: tuple[ContainerRecord, ...]
    """Init containers first, in the pod's order."""
    wants: tuple[tuple[str, str], ...] = ()
    """What the scheduler must find for it: resource and quantity, sorted."""
    node_selector: tuple[tuple[str, str], ...] = ()
    """Labels that its node must have, sorted."""
    warm: bool = False
    """A sandbox that nobody has yet."""
    claimed: bool = False
    """A sandbox that was warm."""

    @property
    def ended(self) -> bool:
        """No container of it runs any more, nor will."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)


@dataclass(frozen=True, slots=True)
class ChildRecord:
    """One child that is no pod."""

    kind: Kind
    meta: Meta
    body: bytes
    """The object as JSON without status and managed fields, to compare with what is desired; empty for a Secret."""
    observed_generation: int = 0
    """The generation that the controller of a StatefulSet or Deployment has seen."""
    desired: int = 0
    """``spec.replicas`` of these."""
    replicas: int = 0
    """``status.replicas`` of these."""
    ready: int = 0
    """``status.readyReplicas`` of these."""
    updated: int = 0
    """``status.updatedReplicas`` of these."""
    phase: str = ""
    """Phase of a claim: Pending, Bound or Lost."""
    failure: str = ""
    """Message of a condition that says that pods cannot be created (quota, admission); empty if there is none."""
