"""A run's sandboxes in pods: how many there are, and what keeps the others. Pure.

Pods tell of nodes and images; of those that cannot even be made the orchestrator tells, in the broker's words.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from echorl_core.wire.run_state import SandboxesState
from echorl_core.wire.sandboxes import Why
from echorl_operator.diagnosis import scheduler
from echorl_operator.diagnosis.container_reasons import CONFIG, PULL
from echorl_operator.diagnosis.durations import waited
from echorl_operator.observed.records import ContainerPhase, PodRecord
from echorl_operator.observed.world import Observed

PATIENCE_S = 60.0
"""What waits longer than this is told beside what the run does."""
_CANNOT = {
    "Unschedulable": "cannot be scheduled",
    "ImagePullFailed": "cannot get an image",
    "ContainerNotCreated": "cannot be started",
    "QuotaExceeded": "cannot be created",
    "Refused": "cannot be created",
    "LimitReached": "cannot begin before others of the run end",
}
"""What is said of sandboxes, by reason; in the order of what counts most."""
_UNMADE: Mapping[str, str] = {
    Why.QUOTA: "QuotaExceeded",
    Why.ADMISSION: "Refused",
    Why.LIMIT: "LimitReached",
}
"""Reasons of those that have no pod."""
UNMADE = frozenset(_UNMADE.values())


@dataclass(frozen=True)
class Waiting:
    """Sandboxes that wait for the same."""

    reason: str
    """CamelCase, of a small fixed set."""
    count: int
    message: str
    """The words of who keeps them, on the one that waits longest."""
    seconds: float | None
    """How long that one waits; None: for half a minute or more."""

    @property
    def words(self) -> str:
        """``3 sandboxes cannot be scheduled: of 2 nodes, 2 have too little cpu free``."""
        who = "1 sandbox" if self.count == 1 else f"{self.count} sandboxes"
        return f"{who} {_CANNOT[self.reason]}: {self.message}"


@dataclass(frozen=True)
class Tally:
    """Of one run at one moment."""

    alive: int
    """Pods that are ready."""
    starting: int
    """Pods that are not, with nothing in their way."""
    waiting: tuple[Waiting, ...]
    """By reason, in the order of what counts most."""
    warm: int = 0
    """Pods that are ready and that nobody has yet. Those that are not ready nobody waits for: they are not counted."""
    claimed: int = 0
    """Of ``alive``: that were warm."""

    @property
    def late(self) -> list[Waiting]:
        """What has waited for long."""
        return [waits for waits in self.waiting if waits.seconds is None or waits.seconds > PATIENCE_S]


def are_pods(observed: Observed) -> bool:
    """Whether the run's sandboxes are pods."""
    return observed.run.block("sandboxes").get("provider") in {"pod", "agent-sandbox"}


def tally(observed: Observed) -> Tally:
    """Count a run's sandboxes; pods that have ended or are being deleted are none."""
    state = observed.role_state
    all_living = [pod for pod in observed.sandboxes if pod.meta.deleted_at is None and not pod.ended]
    living = [pod for pod in all_living if not pod.warm]
    by_reason: dict[str, list[tuple[PodRecord, str]]] = {}
    for pod in living:
        for reason, words in () if pod.ready else _in_the_way(pod):
            by_reason.setdefault(reason, []).append((pod, words))
    kept = [_oldest(reason, pods, observed.now) for reason, pods in by_reason.items()]
    if state is not None and state.attempt == observed.run.status.get("attempt"):
        kept += _unmade(state.sandboxes)
    alive, waiting = sum(pod.ready for pod in living), sum(map(len, by_reason.values()))
    order = list(_CANNOT)
    return Tally(
        alive,
        len(living) - alive - waiting,
        tuple(sorted(kept, key=lambda one: order.index(one.reason))),
        warm=sum(pod.ready and pod.warm for pod in all_living),
        claimed=sum(pod.ready and pod.claimed for pod in living),
    )


def late_words(observed: Observed) -> str:
    """What keeps sandboxes of a run that has others; empty if nothing does, or not for long."""
    return "; ".join(waits.words for waits in tally(observed).late)


def nothing_but_waiting(observed: Observed) -> tuple[str, str] | None:
    """Reason and message, where the run has no sandbox for what keeps all of them; None where it has, or wants none."""
    found = tally(observed)
    late = [waits for waits in found.late if waits.reason != _UNMADE[Why.LIMIT]]
    if found.alive or found.starting or not late:
        return None
    first = late[0]
    since = "" if first.seconds is None else f"; waiting {waited(first.seconds)}"
    return first.reason, f"{first.words}{since}"


def _in_the_way(pod: PodRecord) -> Iterator[tuple[str, str]]:
    """Reason and words of what keeps a pod; at most one."""
    if pod.unscheduled:
        yield "Unschedulable", scheduler.read(pod.unscheduled).words
        return
    waiting = (one for one in pod.containers if one.phase is ContainerPhase.WAITING and one.reason in PULL | CONFIG)
    for container in waiting:
        reason = "ImagePullFailed" if container.reason in PULL else "ContainerNotCreated"
        yield reason, f"{container.reason}: {container.message}" if container.message else container.reason
        return


def _oldest(reason: str, pods: Sequence[tuple[PodRecord, str]], now: float) -> Waiting:
    pod, words = min(pods, key=lambda one: one[0].meta.created_at)
    return Waiting(reason, len(pods), words, now - pod.meta.created_at)


def _unmade(state: SandboxesState | None) -> Iterator[Waiting]:
    for waits in () if state is None else state.waiting:
        if waits.why in _UNMADE and waits.count > 0:
            yield Waiting(_UNMADE[waits.why], waits.count, waits.reason, None)
