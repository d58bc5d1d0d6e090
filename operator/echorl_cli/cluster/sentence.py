"""``echorl why`` in one sentence: from what is seen now, not from what an operator wrote some time ago. Pure."""

from collections.abc import Mapping
from typing import Any

from echorl_core.names import Phase
from echorl_operator.diagnosis.durations import span
from echorl_operator.diagnosis.obstacles import Figures, first_obstacle
from echorl_operator.observed.times import from_text
from echorl_operator.observed.world import Observed
from echorl_operator.status.conditions import PROBLEMS

_DOES = {
    Phase.PENDING: "waits",
    Phase.PREPARING: "is being prepared",
    Phase.STARTING: "starts",
    Phase.RUNNING: "runs",
    Phase.RESTARTING: "restarts",
    Phase.SUSPENDED: "is suspended",
    Phase.SUCCEEDED: "has succeeded",
    Phase.FAILED: "has failed",
}
_STILL = (Phase.SUSPENDED, Phase.SUCCEEDED, Phase.FAILED)


def sentence(observed: Observed, *, not_looking: str = "", figures: Figures | None = None) -> str:
    """Why the run is as it is.

    Args:
        observed: the run and what is there of it.
        not_looking: why its status says nothing; empty if an operator looks at it.
        figures: what nodes have free; None where one may not look.
    """
    run = observed.run
    if run.deleted_at is not None:
        return f"{run.key.name} is being deleted; {_count(len(observed.pods) + len(observed.sandboxes))} left"
    phase = phase_of(run.status)
    if not_looking:
        obstacle = None if phase in _STILL else first_obstacle(observed, figures)
        return not_looking if obstacle is None else f"{not_looking}. Besides, {obstacle.message}"
    message = str(run.status.get("message", ""))
    if phase in _STILL:
        return f"{run.key.name} {_DOES[phase]}: {_told(run.status, phase) or message}"
    obstacle = first_obstacle(observed, figures)
    if obstacle is not None:
        does = "runs, but" if phase is Phase.RUNNING else "waits:"
        return f"{run.key.name} {does} {obstacle.message}"
    if any(true_condition(run.status, kind) for kind in PROBLEMS):
        return f"{run.key.name} waits: {message}"
    return f"{run.key.name} {_DOES[phase]}{_since(observed)}{_step(observed)}: {message}"


def phase_of(status: Mapping[str, Any]) -> Phase:
    """Where the run stands; Pending if nothing says."""
    told = status.get("phase")
    return Phase(told) if told in set(Phase) else Phase.PENDING


def true_condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """A condition that holds; None if it does not."""
    of_kind = (condition for condition in status.get("conditions", ()) if condition.get("type") == kind)
    return next((condition for condition in of_kind if condition.get("status") == "True"), None)


def _told(status: Mapping[str, Any], phase: Phase) -> str:
    failed = true_condition(status, "Failed") if phase is Phase.FAILED else None
    return "" if failed is None else f"{failed.get('reason')}: {failed.get('message', '')}"


def _since(observed: Observed) -> str:
    timeline = observed.run.status.get("timeline") or ()
    begun = from_text(timeline[-1].get("since")) if timeline else None
    return "" if begun is None else f" since {span(observed.now - begun)}"


def _step(observed: Observed) -> str:
    step, wanted = observed.run.status.get("step"), observed.run.spec.get("maxSteps")
    if step is None:
        return ""
    return f", step {step}" if wanted is None else f", step {step} of {wanted}"


def _count(pods: int) -> str:
    return f"{pods} {'pod is' if pods == 1 else 'pods are'}"
