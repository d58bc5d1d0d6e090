"""Events in which controllers and kubelets tell of an object. Why a StatefulSet makes no pods stands nowhere else."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EventSubject:
    """An object, in the run's namespace, that events are about."""

    kind: str
    name: str
    uid: str = field(default="", compare=False)
    """Leaves out events of others that had this name before; empty: nobody knows it."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class WarningEvent:
    """One event, or a series of equal ones."""

    subject: EventSubject
    type: str
    """The event's type: Normal or Warning."""
    reason: str
    message: str
    count: int
    first: float
    last: float
    """When it was seen first and last, in seconds since the epoch of whoever reported it."""
    source: str = ""
    """The component that reported it."""
