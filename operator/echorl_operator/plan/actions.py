"""The writes that a plan is made of. They are carried out in order; the first that fails ends the pass."""

from dataclasses import dataclass
from typing import Any

from echorl_core.live import LiveSettings
from echorl_operator.accounting.restarts import Restart


@dataclass(frozen=True)
class Apply:
    """Server-side apply of one child, forced, with our field manager."""

    body: dict[str, Any]
    resource_version: str | None = None
    """Makes the write fail with 409 unless the object is still at this version."""


@dataclass(frozen=True)
class Create:
    """Create an object that is never changed; one that is there already is left as it is."""

    body: dict[str, Any]
    relabel: bool = False
    """Give one that is there already these labels: somebody took them away, and it is found by them."""


@dataclass(frozen=True)
class Delete:
    """Delete exactly this object: by name, with its uid as precondition. One that is gone or replaced is no error."""

    api_version: str
    kind: str
    name: str
    uid: str
    why: str
    grace_s: int | None = None
    """Grace period: 0 removes a pod without waiting for its node, None keeps the pod's own."""


@dataclass(frozen=True)
class LiftGate:
    """Take our scheduling gate off a pod, if it is still the pod that was seen."""

    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True)
class ChangeOwner:
    """Give exactly this object an owner, or take that one away; other owners stay."""

    api_version: str
    kind: str
    name: str
    uid: str
    owner: dict[str, Any]
    """The owner reference to set or to take away."""
    owned: bool


@dataclass(frozen=True)
class RetryController:
    """Make the controller of exactly this workload try again at once, by an annotation that says when."""

    kind: str
    name: str
    uid: str
    at: str
    """When the retry was decided, in RFC 3339."""


@dataclass(frozen=True)
class AskToStop:
    """Ask the orchestrator for a last checkpoint and the end."""

    address: str
    """The orchestrator's ``host:port``."""
    attempt: int


@dataclass(frozen=True)
class ChangeLive:
    """Tell the orchestrator what the user changed that needs no restart."""

    address: str
    """The orchestrator's ``host:port``."""
    attempt: int
    settings: LiveSettings


@dataclass(frozen=True)
class DeleteRun:
    """Delete the run itself (``ttlSecondsAfterFinished``)."""

    uid: str


Action = Apply | Create | Delete | LiftGate | ChangeOwner | RetryController | AskToStop | ChangeLive | DeleteRun


@dataclass(frozen=True)
class Note:
    """A Kubernetes event on the run; posted once the pass's status is written."""

    type: str
    """The event's type: Normal or Warning."""
    reason: str
    """The event's reason: one CamelCase word."""
    message: str


@dataclass(frozen=True)
class Plan:
    """What one pass over a run writes."""

    status: dict[str, Any]
    """The whole of ``status``, as it should read now. Written first where ``fence`` says so, else last."""
    actions: tuple[Action, ...] = ()
    fence: bool = False
    """The status must be written, at the resource version that was read, before any action is carried out."""
    notes: tuple[Note, ...] = ()
    wake_after_s: float | None = None
    """When to look again although nothing changed: deadlines, back-off, times to live."""
    restart: Restart | None = None
    """What this pass starts again; metrics count it."""
