"""The builder of a plan collects what one pass decides, in the order in which it decides it."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from echorl_core.names import Phase
from echorl_core.termination_message import Preparation
from echorl_operator.accounting.restarts import Restart
from echorl_operator.names import ANNOTATION_HASH, PodRole
from echorl_operator.observed.memory import Memory
from echorl_operator.observed.records import ChildRecord, Kind, PodRecord
from echorl_operator.observed.world import Observed
from echorl_operator.plan.actions import Action, Apply, Delete, Note
from echorl_operator.plan.cache import ResultCache
from echorl_operator.plan.drift import needs_apply
from echorl_operator.plan.outcome import Outcome
from echorl_operator.settings import Settings

_VERSIONS = {
    Kind.STATEFUL_SET: "apps/v1",
    Kind.DEPLOYMENT: "apps/v1",
    Kind.REVISION: "apps/v1",
    Kind.NETWORK_POLICY: "networking.k8s.io/v1",
    Kind.DISRUPTION_BUDGET: "policy/v1",
}


class PlanBuilder:
    """Collects memory, actions, notes and what to say. One builder serves one pass."""

    def __init__(self, observed: Observed, settings: Settings, token: str, results: ResultCache | None = None) -> None:
        """``token`` guards the calls between this run's roles; ``results`` holds results of earlier passes over it."""
        self.observed, self.settings, self.token, self.results = observed, settings, token, results or ResultCache()
        self.memory = Memory.of(observed.run.status)
        self.actions: list[Action] = []
        self.notes: list[Note] = []
        self.fence = False
        self.wakes: list[float] = []
        self.restart: Restart | None = None
        """What this pass starts again; metrics count it."""
        self.phase: Phase = self.memory.phase
        self.reason = ""
        self.message = ""
        self.autoscale = ""
        """Why there are to be that many engines; empty: nothing new is to be told."""
        self.missing = ""
        """What an elastic gang is made smaller for."""
        self.preparation: Preparation | None = None
        """What prepare found, in the pass that learns of it."""
        self.problems: dict[str, tuple[str, str]] = {}
        """Conditions that are true because something is wrong: reason and message, by type."""

    # What is there.

    @property
    def now(self) -> float:
        """Seconds since the epoch."""
        return self.observed.now

    def child(self, kind: Kind, name: str) -> ChildRecord | None:
        """The child of that kind and name, unless it is being deleted."""
        child = self.observed.child(kind, name)
        return None if child is None or child.meta.deleted_at is not None else child

    # What to do.

    def remember(self, **changes: Any) -> None:
        """Change what later passes know."""
        self.memory = replace(self.memory, **changes)

    def fenced(self, **changes: Any) -> None:
        """Change what later passes must know before any action of this one is carried out."""
        self.remember(**changes)
        self.fence = True

    def do(self, *actions: Action) -> None:
        """Add actions to the plan."""
        self.actions += actions

    def ensure_applied(self, desired: dict[str, Any], kind: Kind, *, guarded: bool = False) -> Outcome:
        """Apply a child unless it is as desired. ``guarded``: only at the version that was seen."""
        live = self.child(kind, desired["metadata"]["name"])
        if live is not None and not self._differs(desired, live):
            return Outcome.DONE
        self.do(Apply(desired, live.meta.resource_version if guarded and live is not None else None))
        return Outcome.PENDING

    def _differs(self, desired: dict[str, Any], live: ChildRecord) -> bool:
        # The hash stands for all of ``desired``.
        given = (desired["metadata"]["annotations"][ANNOTATION_HASH], live.body)
        return self.results.of(live.meta.uid, given, lambda: needs_apply(desired, live.body))

    def delete_pods(self, pods: Iterable[PodRecord], why: str, *, grace_s: int | None = None) -> None:
        """Delete pods that are not being deleted already. ``grace_s``: see ``Delete``."""
        living = (pod for pod in pods if pod.meta.deleted_at is None)
        self.do(*(Delete("v1", "Pod", pod.meta.name, pod.meta.uid, why, grace_s=grace_s) for pod in living))

    def delete_child(self, child: ChildRecord, why: str) -> None:
        """Delete another child."""
        if child.meta.deleted_at is None:
            version = _VERSIONS.get(child.kind, "v1")
            self.do(Delete(version, str(child.kind), child.meta.name, child.meta.uid, why))

    def note(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Add an event on the run."""
        self.notes.append(Note("Warning" if warning else "Normal", reason, message))

    def wake(self, at: float) -> None:
        """Have the run looked at again at ``at``, seconds since the epoch."""
        self.wakes.append(at)

    # What to say.

    def say(self, phase: Phase, reason: str, message: str) -> None:
        """Say where the run stands, and why in one word and in one sentence. The last call counts."""
        self.phase, self.reason, self.message = phase, reason, message

    def problem(self, condition: str, reason: str, message: str) -> None:
        """Say that something is wrong which heals when its cause goes."""
        self.problems[condition] = (reason, message)

    def orchestrator(self) -> PodRecord | None:
        """The living orchestrator pod of the current attempt."""
        pods = (pod for pod in self.pods(PodRole.ORCHESTRATOR) if pod.attempt == self.memory.attempt)
        return next((pod for pod in pods if not pod.ended and pod.meta.deleted_at is None), None)

    def pods(self, role: PodRole) -> list[PodRecord]:
        """All pods of a role: those of every attempt, terminating ones included."""
        return list(self.observed.of(role))
