"""Conditions: the run's state by aspect. A condition's time changes only when its status does."""

from collections.abc import Iterable, Mapping
from typing import Any

from echorl_core.names import Phase
from echorl_manifest.models.status import MAX_MESSAGE
from echorl_operator import names
from echorl_operator.names import PodRole
from echorl_operator.observed.memory import Memory
from echorl_operator.observed.roles import RoleState
from echorl_operator.observed.times import to_text
from echorl_operator.observed.world import Observed
from echorl_operator.status.pass_report import PassReport

OVERDUE_INTERVALS = 3
"""Checkpoint intervals without a committed checkpoint after which that is told."""

STEPS_WITHOUT_SIGNAL = 3
"""Steps in a row from whose rewards nothing could be learned, after which that is told."""

PROBLEMS = ("Blocked", "InvalidSpec", "NodeLost", "Stalled")
"""Conditions that are there only since something was wrong; an event tells of each that becomes true."""

Aspect = tuple[str, str, str]
"""Status (True, False, Unknown), reason and message."""


def conditions(observed: Observed, memory: Memory, report: PassReport, state: RoleState | None) -> list[dict[str, Any]]:
    """All conditions, sorted by type."""
    aspects: dict[str, Aspect] = {
        "Ready": _ready(report),
        "Progressing": _progressing(report),
        "TrainerReady": _role_ready(observed, PodRole.TRAINER, report.trainer_pods),
        "InferenceReady": _role_ready(observed, PodRole.INFERENCE, report.engines),
        "OrchestratorReady": _role_ready(observed, PodRole.ORCHESTRATOR, 1),
        "Failed": _failed(report),
    }
    # A problem that is over stays to be read, as False.
    before = {old.get("type"): old for old in observed.run.status.get("conditions", []) if isinstance(old, Mapping)}
    told = {
        "CheckpointCommitted": _checkpoint(memory, report, state),
        "OffPolicyBounded": _off_policy(report, state),
        "RewardSignal": _reward_signal(state),
        "EpisodeInfrastructure": _episode_infrastructure(state),
        "GangWhole": _gang_whole(report),
    }
    for kind, aspect in told.items():
        if aspect is not None:
            aspects[kind] = aspect
        elif state is None and kind in before:
            # Nobody tells at the moment.
            aspects[kind] = _aspect(before[kind])
    problems = dict(report.problems)
    if (stuck := _stuck(report)) is not None:
        problems.setdefault("Stalled", stuck)
    for kind in PROBLEMS:
        if kind in problems:
            aspects[kind] = ("True", *problems[kind])
        elif kind in before:
            aspects[kind] = ("False", "Healed", "")
    return [_written(kind, aspect, before.get(kind), observed) for kind, aspect in sorted(aspects.items())]


def begun(before: Iterable[Any], after: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Problems to tell by an event: conditions that have become true, each told once.

    Args:
        before: Conditions as status has them.
        after: As they are to be written.
    """
    standing = {old.get("type") for old in before if isinstance(old, Mapping) and old.get("status") == "True"}
    return [new for new in after if is_problem(new) and new["type"] not in standing]


def is_problem(condition: Mapping[str, Any]) -> bool:
    """Whether a condition says that something is wrong which none of the others says."""
    kind = condition.get("type")
    own = kind != "Stalled" or condition.get("reason") == names.NO_STEP
    return kind in PROBLEMS and condition.get("status") == "True" and own


def _written(kind: str, aspect: Aspect, before: Mapping[str, Any] | None, observed: Observed) -> dict[str, Any]:
    status, reason, message = aspect
    since = to_text(observed.now)
    if before is not None and before.get("status") == status:
        since = before.get("lastTransitionTime", since)
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:MAX_MESSAGE],
        "lastTransitionTime": since,
        "observedGeneration": observed.run.generation,
    }


def _aspect(condition: Mapping[str, Any]) -> Aspect:
    return (str(condition.get("status")), str(condition.get("reason")), str(condition.get("message", "")))


def _ready(report: PassReport) -> Aspect:
    ready = report.phase in (Phase.RUNNING, Phase.SUCCEEDED)
    return ("True" if ready else "False", report.reason or str(report.phase), "" if ready else report.message)


def _stuck(report: PassReport) -> tuple[str, str] | None:
    """Reason and message of an end, or a manifest, that only an edit gets the run out of; None: there is none."""
    if report.phase is Phase.FAILED:
        return (report.reason, report.message)
    return report.problems.get("InvalidSpec")


def _progressing(report: PassReport) -> Aspect:
    still = report.phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED)
    # What hangs while the gang is at work is an engine: the run goes on without it.
    in_the_way = [kind for kind in report.problems if not (kind == "NodeLost" and report.phase is Phase.RUNNING)]
    return ("False" if still or in_the_way else "True", report.reason or str(report.phase), report.message)


def _role_ready(observed: Observed, role: PodRole, wanted: int) -> Aspect:
    ready = sum(pod.ready and pod.meta.deleted_at is None for pod in observed.of(role))
    reason = "PodsReady" if ready >= wanted else "PodsNotReady"
    return ("True" if ready >= wanted else "False", reason, f"{ready} of {wanted} pods are ready")


def _failed(report: PassReport) -> Aspect:
    if report.phase is Phase.FAILED:
        return ("True", report.reason, report.message)
    return ("False", "NotFailed", "")


def _checkpoint(memory: Memory, report: PassReport, state: RoleState | None) -> Aspect | None:
    """False when the newest checkpoint was given up, is older than three intervals, was damaged, or is gone."""
    if memory.lost_checkpoint:
        begun = memory.resume_step is not None
        goes_on = f"; attempt {memory.attempt} goes on from step {memory.resume_step}" if begun else ""
        return ("False", "Lost", f"{memory.lost_checkpoint}{goes_on}")
    if state is None or state.step is None or report.checkpoint_interval is None:
        return None
    newest = state.checkpoint.step if state.checkpoint is not None else memory.resume_step or 0
    overdue = state.step - newest
    if overdue > OVERDUE_INTERVALS * report.checkpoint_interval:
        why = f"; the last one was lost: {state.abandoned}" if state.abandoned else ""
        return ("False", "Overdue", f"step {state.step}, and the newest committed checkpoint is of step {newest}{why}")
    if state.abandoned_step is not None:
        why = state.abandoned or f"checkpoint {state.abandoned_step} could not be saved"
        return ("False", "Abandoned", f"{why}; the run goes on, and can begin again at step {newest}")
    if state.checkpoint is None:
        return ("Unknown", "NoneYet", "no checkpoint has been due")
    return ("True", "Committed", f"step {newest}")


def _off_policy(report: PassReport, state: RoleState | None) -> Aspect | None:
    limit = report.max_staleness
    if state is None or state.staleness_max is None or limit is None:
        return None
    within = state.staleness_max <= limit
    reason = "WithinBound" if within else "BoundExceeded"
    return ("True" if within else "False", reason, f"samples are up to {state.staleness_max} versions old, of {limit}")


def _reward_signal(state: RoleState | None) -> Aspect | None:
    """False when rewards have taught nothing for some steps: a run with ECHO goes on all the same."""
    if state is None or state.steps_without_rl is None:
        return None
    if state.steps_without_rl < STEPS_WITHOUT_SIGNAL:
        return ("True", "RewardsDiffer", "")
    count = f"the last {state.steps_without_rl} steps had no episode with an advantage that trains"
    return ("False", "NothingToLearn", f"{count}: rewards are equal within groups, or filters take what differs")


def _gang_whole(report: PassReport) -> Aspect | None:
    """False while an elastic gang goes on with fewer pods than the manifest has."""
    if report.missing is None:
        return None
    return ("False", "Shrunk", report.missing) if report.missing else ("True", "Whole", "")


def _episode_infrastructure(state: RoleState | None) -> Aspect | None:
    """False when an environment loses more episodes to infrastructure than it may: what is left may be too little."""
    if state is None or state.infrastructure_losses is None:
        return None
    if not state.infrastructure_losses:
        return ("True", "WithinBound", "")
    told = (
        f"{loss.environment} loses {loss.share:.0%} of its episodes, of {loss.limit:.0%}; the last one: {loss.error}"
        for loss in state.infrastructure_losses
    )
    return ("False", "ShareExceeded", "; ".join(told))
