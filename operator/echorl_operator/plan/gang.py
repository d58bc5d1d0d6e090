"""The trainer's pods as a gang: which belong to the attempt, whether all are there, how those that ended did."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from echorl_operator.names import PodRole
from echorl_operator.observed.records import PodRecord
from echorl_operator.observed.world import Observed


def digest(pods: Iterable[PodRecord]) -> str:
    """Digest of a set of pods: 16 hexadecimal digits over their uids."""
    return hashlib.sha256("\n".join(sorted(pod.meta.uid for pod in pods)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Gang:
    """Trainer pods at one moment."""

    wanted: int
    """Pods of a whole gang."""
    current: tuple[PodRecord, ...]
    """Pods of the attempt, terminating ones included."""
    departed: tuple[PodRecord, ...]
    """Pods of the attempt that are gone from the API server a moment ago, as they were seen last."""

    @classmethod
    def of(cls, observed: Observed, attempt: int, wanted: int) -> "Gang":
        """The gang of ``attempt``. What somebody's scaling added is none of it, and goes with the scaling."""

        def belongs(pod: PodRecord) -> bool:
            return pod.role is PodRole.TRAINER and pod.attempt == attempt and (pod.index is None or pod.index < wanted)

        return cls(
            wanted,
            tuple(pod for pod in observed.pods if belongs(pod)),
            tuple(pod for pod in observed.departed if belongs(pod)),
        )

    @property
    def waits_whole(self) -> bool:
        """Every pod is there and none is ending: gates may be lifted."""
        return len(self.current) == self.wanted and all(
            pod.meta.deleted_at is None and not pod.ended for pod in self.current
        )

    def is_admitted(self, pods: str) -> bool:
        """Whether these are the pods that were let through, every one of them and no other."""
        return digest(self.current) == pods

    @property
    def ended(self) -> tuple[PodRecord, ...]:
        """Pods that ended, gone ones included."""
        return (*(pod for pod in self.current if pod.ended), *self.departed)
