"""All that one pass over a run rests on."""

from collections.abc import Iterator
from dataclasses import dataclass

from echorl_operator.names import PodRole
from echorl_operator.observed.memory import GangSize
from echorl_operator.observed.records import ChildRecord, Kind, PodRecord
from echorl_operator.observed.roles import RoleState
from echorl_operator.observed.runs import RunRecord
from echorl_operator.observed.warning_events import EventSubject, WarningEvent


@dataclass(frozen=True, slots=True)
class Observed:
    """One run and everything that carries its uid, at one moment."""

    run: RunRecord
    pods: tuple[PodRecord, ...]
    """Sorted by name; pods that are being deleted included."""
    children: tuple[ChildRecord, ...]
    """Sorted by kind and name."""
    departed: tuple[PodRecord, ...]
    """Pods of the run that are gone from the API server since a few minutes at most, as they were seen last."""
    role_state: RoleState | None
    """None: the orchestrator has not answered lately, or there is none."""
    refusal: str
    """Why the API server refused a write of the last pass (quota, admission); empty if it did not."""
    now: float
    """Seconds since the epoch."""
    warning_events: tuple[WarningEvent, ...] = ()
    """Events of objects that something is wrong with."""
    strangers: tuple[PodRecord, ...] = ()
    """Pods under names of the run's missing ones that are not, or not any more, the run's."""
    sandboxes: tuple[PodRecord, ...] = ()
    """Pods of the run's sandboxes, sorted by name; ``pods`` holds none of them."""

    def of(self, role: PodRole) -> Iterator[PodRecord]:
        """Pods of one role, all attempts."""
        return (pod for pod in self.pods if pod.role is role)

    @property
    def spares(self) -> tuple[PodRecord, ...]:
        """Trainer pods beyond the attempt's gang, which hold places until it grows."""
        size = GangSize.of((self.run.status.get("control") or {}).get("gang"))
        if size is None:
            return ()
        attempt = self.run.status.get("attempt")
        return tuple(
            pod
            for pod in self.of(PodRole.TRAINER)
            if pod.attempt == attempt and pod.index is not None and size.pods <= pod.index < size.replicas
        )

    def child(self, kind: Kind, name: str) -> ChildRecord | None:
        """The child of that kind and name; None if there is none."""
        return next((child for child in self.children if child.kind is kind and child.meta.name == name), None)

    def said_of(self, subject: EventSubject) -> list[WarningEvent]:
        """Events of one object, newest first."""
        events = (event for event in self.warning_events if event.subject == subject)
        return sorted(events, key=lambda event: event.last, reverse=True)
