"""What became of a sandbox, by its pod's status: ready, on its way, or lost and by whose doing. Pure.

Classes come from the kubelet's and the scheduler's own reasons. Their words decide in one case alone: whether a pod was
evicted for what it wrote itself, or for what its node lacks, since both have the same reason.
"""

import re
from dataclasses import dataclass

from echorl_broker.metrics import State
from echorl_broker.profile import INSTALL
from echorl_core.wire.sandboxes import Loss, Why
from echorl_operator.diagnosis import refusals
from echorl_operator.observed.records import ContainerPhase, ContainerRecord, PodPhase, PodRecord

IMAGE_PATIENCE_S = 60.0
"""A registry that does not answer at once may do so at the kubelet's third try."""
EXPIRED_CODE = 124
"""How the daemon ends at its time."""
_NO_IMAGE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError", "SignatureValidationFailed"}
)
_NEVER_AN_IMAGE = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_NOT_CREATED = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_TURNED_AWAY = re.compile(r"OutOf\w+|NodeAffinity|UnexpectedAdmissionError|Topology\w+|InvalidNodeInfo|\w*NotSupported")
"""Reasons of a kubelet that does not take a pod which was given to its node."""
DELETED = "Deleted"
"""Our reason of a pod that is being deleted, though its sandbox is not."""
_TAKEN = frozenset(
    {"Evicted", "Preempting", "Preempted", "NodeLost", "NodeShutdown", "Terminated", "Shutdown", DELETED}
)
_OWN_LIMIT = re.compile(
    r"local ephemeral storage (usage|limit)|ephemeral local storage usage exceeds|Usage of EmptyDir volume", re.ASCII
)
_LONGEST = 500
"""Characters of others' words."""


@dataclass(frozen=True)
class Lost:
    """There is no such sandbox, or not any more."""

    loss: Loss
    message: str


@dataclass(frozen=True)
class Waits:
    """It is on its way."""

    reason: str
    why: Why


@dataclass(frozen=True)
class Up:
    """It answers at this address."""

    ip: str


def state_of(pod: PodRecord, *, now: float, start_deadline_s: float) -> Up | Waits | Lost:
    """Where a sandbox stands.

    Args:
        pod: its pod.
        now: seconds since the epoch.
        start_deadline_s: from the pod's creation to its readiness.
    """
    lost = _by_reason(pod) or _by_container(pod) or _unable(pod, now)
    if lost is not None:
        return Lost(lost.loss, lost.message[:_LONGEST])
    if pod.ready and pod.ip:
        return Up(pod.ip)
    waits = _waits(pod)
    if now - pod.meta.created_at > start_deadline_s:
        # Who was never given a node had no room; who has one was slow.
        return Lost("start" if pod.node else "refused", f"not ready after {start_deadline_s:.0f} s: {waits.reason}")
    return waits


def stands(pod: PodRecord, *, now: float, start_deadline_s: float) -> State:
    """``state_of`` in one word, of a pod that may be on its way out."""
    state = state_of(pod, now=now, start_deadline_s=start_deadline_s)
    if pod.meta.deleted_at is not None or isinstance(state, Lost):
        return State.ENDED
    if isinstance(state, Up):
        return State.READY
    return State.STARTING if pod.node else State.WAITING


def _by_reason(pod: PodRecord) -> Lost | None:
    """Its pod says why it ended, or was taken away."""
    if pod.reason == "DeadlineExceeded":
        return Lost("expired", f"it outlived its time: {pod.message}")
    if pod.reason == "Evicted" and _OWN_LIMIT.search(pod.message):
        return Lost("overused", f"evicted for what it wrote: {pod.message}")
    if pod.reason in _TAKEN:
        return Lost("evicted", f"{pod.reason}: {pod.message}")
    if pod.phase is PodPhase.FAILED and _TURNED_AWAY.fullmatch(pod.reason):
        return Lost("refused", f"its node did not take it: {pod.reason}: {pod.message}")
    return None


def _by_container(pod: PodRecord) -> Lost | None:
    """Its processes are gone, or about to be."""
    ended = _first(pod, ContainerPhase.TERMINATED)
    if ended is not None and ended.reason == "OOMKilled":
        return Lost("overused", "it used up its memory, and the kernel ended it")
    if pod.disrupted and (pod.ended or ended is not None or pod.meta.deleted_at is not None):
        return Lost("evicted", f"the cluster took it away: {pod.disrupted}")
    return _exited(pod, ended)


def _exited(pod: PodRecord, container: ContainerRecord | None) -> Lost | None:
    if container is None:
        return Lost("lost", f"its pod ended: {pod.reason} {pod.message}".rstrip()) if pod.ended else None
    code = container.exit_code
    if container.name == INSTALL:
        return Lost("refused", f"the daemon could not be put into it, code {code}: {container.message}")
    if code == EXPIRED_CODE:
        return Lost("expired", "it outlived its time")
    if container.reason in {"StartError", "ContainerCannotRun"}:
        return Lost("start", f"its container could not be started: {container.message}")
    return Lost("lost", f"its daemon ended with code {code}")


def _unable(pod: PodRecord, now: float) -> Lost | None:
    """Its containers cannot begin, whoever waits."""
    waiting = _first(pod, ContainerPhase.WAITING)
    if waiting is None:
        return None
    words = f"{waiting.reason}: {waiting.message}"
    late = now - pod.meta.created_at > IMAGE_PATIENCE_S
    if waiting.reason in _NEVER_AN_IMAGE or (waiting.reason in _NO_IMAGE and late):
        ours = waiting.name == INSTALL
        return Lost("refused", f"the installation's daemon image: {words}") if ours else Lost("image", words)
    return Lost("start", words) if waiting.reason in _NOT_CREATED else None


def _waits(pod: PodRecord) -> Waits:
    if pod.message and not pod.node:
        # There is no pod yet, and this is why.
        full = refusals.read(pod.message).reason == "QuotaExceeded"
        return Waits(pod.message[:_LONGEST], Why.QUOTA if full else Why.ADMISSION)
    if pod.unscheduled:
        return Waits(f"its pod waits for a node: {pod.unscheduled}"[:_LONGEST], Why.NODE)
    if not pod.node:
        return Waits("its pod waits for a node", Why.NODE)
    waiting = _first(pod, ContainerPhase.WAITING)
    if waiting is not None and waiting.reason in _NO_IMAGE:
        return Waits(f"its image does not come yet: {waiting.reason}: {waiting.message}"[:_LONGEST], Why.IMAGE)
    return Waits("its pod starts", Why.START)


def _first(pod: PodRecord, phase: ContainerPhase) -> ContainerRecord | None:
    """The first container in a phase that tells something: not one that did its work, or waits for its turn."""
    return next((one for one in pod.containers if one.phase is phase and not _is_usual(one)), None)


def _is_usual(container: ContainerRecord) -> bool:
    if container.phase is ContainerPhase.TERMINATED:
        return container.name == INSTALL and container.exit_code == 0
    return container.reason in {"", "PodInitializing", "ContainerCreating"}
