"""What a broker counts, by run: names are ``echorl_broker_<what>_<unit>``.

Every replica counts what it did itself; what pods there are all replicas see. Runs that have none, and that nobody asks
about, are forgotten.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import get_args

from echorl_core.wire.sandboxes import Loss, Why
from echorl_operator.metrics import ProcessMetrics, Sample
from echorl_operator.observed.records import PodRecord
from echorl_operator.observed.runs import RunKey

PREFIX = "echorl_broker"
FORGOTTEN_AFTER_S = 3600.0
"""A run without pods or requests for so long has no series any more; what it counts afterwards begins at 0."""
_MOST_SEEN = 1 << 16
_OF_RUN = ("namespace", "run")
_READY_BUCKETS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800)


class State(StrEnum):
    """Label ``state`` of ``echorl_broker_sandboxes``."""

    WAITING = "waiting"
    """Its pod has no node."""
    STARTING = "starting"
    """A node has it: images, containers."""
    READY = "ready"
    """Its daemon answers."""
    WARM = "warm"
    """It is ready, and nobody has it yet."""
    ENDED = "ended"
    """It is lost, or being deleted, and its pod still there."""


class BrokerMetrics(ProcessMetrics):
    """One broker's."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds that never go back."""
        super().__init__(PREFIX)
        self._clock = clock
        self._made = self._counter("sandboxes_made", "Pods of sandboxes that this replica made.", _OF_RUN)
        self._claimed = self._counter(
            "sandboxes_claimed", "Sandboxes that were warm until they were asked for.", _OF_RUN
        )
        self._failed = self._counter(
            "sandboxes_failed",
            "Sandboxes that could not be made, or were lost, by why; counted by who refuses, or ends what is left.",
            (*_OF_RUN, "reason"),
        )
        self._seconds = self._histogram(
            "sandbox_ready_seconds",
            "From a pod's creation to its readiness, in whole seconds.",
            _OF_RUN,
            _READY_BUCKETS,
        )
        self._waits: Counter[tuple[RunKey, Why]] = Counter()
        self._seen: Mapping[Hashable, Counter[tuple[RunKey, State]]] = {}
        self._told: OrderedDict[str, None] = OrderedDict()
        self._lost: OrderedDict[str, None] = OrderedDict()
        self._touched: dict[RunKey, float] = {}
        self.at_scrape(
            "sandboxes_waiting", "Requests that wait for a sandbox now.", (*_OF_RUN, "reason"), self._waiting
        )
        self.at_scrape(
            "sandboxes",
            "Pods of sandboxes that there are, at the newest look; each replica shows all of them.",
            (*_OF_RUN, "state"),
            self._present,
        )

    def made(self, run: RunKey, pod: str) -> None:
        """Count a pod, of this name, that was made."""
        self._made.labels(*self._of(run)).inc()
        self._lost.pop(f"{run} {pod}", None)

    def claimed(self, run: RunKey) -> None:
        """Count a warm one that somebody has from now on."""
        self._claimed.labels(*self._of(run)).inc()

    def failed(self, run: RunKey, loss: Loss, pod: str | None = None) -> None:
        """Count one that is not there, or not any more; a ``pod`` once, until it is made anew."""
        if pod is not None and not _noted(self._lost, f"{run} {pod}"):
            return
        self._failed.labels(*self._of(run), loss).inc()

    def ready(self, run: RunKey, pod: PodRecord) -> None:
        """Count one that is ready, once."""
        if pod.ready_since is None or not _noted(self._told, pod.meta.uid):
            return
        self._seconds.labels(*self._of(run)).observe(max(0.0, pod.ready_since - pod.meta.created_at))

    @contextmanager
    def waiting(self, run: RunKey, why: Why) -> Iterator[None]:
        """Count a request that waits, as long as it does."""
        self._of(run)
        self._waits[run, why] += 1
        try:
            yield
        finally:
            self._waits[run, why] -= 1
            if not self._waits[run, why]:
                del self._waits[run, why]

    def looked(self, place: Hashable, found: Counter[tuple[RunKey, State]]) -> None:
        """Take in all sandboxes of one place, such as a namespace; forget the runs that nothing is heard of."""
        self._seen = {**self._seen, place: found}
        for run, _ in found:
            self._of(run)
        for run in [run for run, at in self._touched.items() if self._clock() - at > FORGOTTEN_AFTER_S]:
            self._forget(run)

    def _of(self, run: RunKey) -> tuple[str, str]:
        self._touched[run] = self._clock()
        return run.namespace, run.name

    def _forget(self, run: RunKey) -> None:
        del self._touched[run]
        labels = (run.namespace, run.name)
        self._made.remove(*labels)
        self._claimed.remove(*labels)
        self._seconds.remove(*labels)
        for loss in get_args(Loss):
            self._failed.remove(*labels, loss)

    def _waiting(self) -> Iterator[Sample]:
        for (run, why), count in list(self._waits.items()):
            yield (run.namespace, run.name, why), float(count)

    def _present(self) -> Iterator[Sample]:
        for (run, state), count in sum(self._seen.values(), Counter[tuple[RunKey, State]]()).items():
            yield (run.namespace, run.name, state), float(count)


def _noted(seen: OrderedDict[str, None], name: str) -> bool:
    """Whether ``name`` is new among the newest that were seen; it is one of them from now on."""
    if name in seen:
        return False
    seen[name] = None
    if len(seen) > _MOST_SEEN:
        seen.popitem(last=False)
    return True
