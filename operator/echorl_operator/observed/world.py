"""All that one pass over a run rests on."""

from collections.abc import Iterator
from dataclasses import dataclass

from echorl_operator.names import PodRole
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

    def of(self, role: PodRole) -> Iterator[PodRecord]:
        """Pods of one role, all attempts."""
        return (pod for pod in self.pods if pod.role is role)

    def child(self, kind: Kind, name: str) -> ChildRecord | None:
        """One child, or None."""
        return next((one for one in self.children if one.kind is kind and one.meta.name == name), None)

    def said_of(self, subject: EventSubject) -> list[WarningEvent]:
        """Events of one object, newest first."""
        found = (one for one in self.warning_events if one.subject == subject)
        return sorted(found, key=lambda one: one.last, reverse=True)
