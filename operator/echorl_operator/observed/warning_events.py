"""What controllers and kubelets said of an object in events. Why a StatefulSet makes no pods stands nowhere else."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EventSubject:
    """An object, in the run's namespace, that events are about."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class WarningEvent:
    """One event, or a series of equal ones."""

    subject: EventSubject
    type: str
    """Normal or Warning."""
    reason: str
    message: str
    count: int
    first: float
    last: float
    """Seconds since the epoch, as whoever reported it saw them."""
    source: str = ""
    """Who reported it."""
