"""Carries out what is decided of an elastic gang's size: fewer pods when nodes are missing, more when places are held.

The attempt is rendered with the pods that it has, so all that follows from their number is of one size: the ranks that
batches are packed for, the gang that is let through together, its budget. The manifest stays as it is.
"""

from echorl_core.names import Phase, Role
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.trainer import gang_sizes
from echorl_operator.accounting.restarts import Cause, Restart
from echorl_operator.diagnosis import scheduler
from echorl_operator.diagnosis.obstacles import is_unscheduled, waits_since, why_nowhere
from echorl_operator.observed.memory import GangSize
from echorl_operator.observed.records import PodRecord
from echorl_operator.observed.times import to_text
from echorl_operator.plan import edits, endings
from echorl_operator.plan.actions import LiftGate
from echorl_operator.plan.builder import PlanBuilder
from echorl_operator.plan.elasticity import HOLD_S, Places, counts, grown, resized, spare_pods, with_trainer_pods
from echorl_operator.plan.gang import Gang
from echorl_operator.plan.outcome import Outcome

CONDITION = "GangWhole"


def handle_size(builder: PlanBuilder, gang: Gang, spec: EchoRLRunSpec) -> Outcome:
    """Begin an attempt of another size, or have the gang save before it grows, if one of these is due.

    ``gang``: one that was let through to the scheduler.
    """
    elastic, size = spec.trainer.elastic, builder.memory.gang_size
    if size is not None and (not counts(size, builder.observed.run.spec) or _is_proven(builder, size)):
        builder.remember(gang_size=None)
        size = None
    if elastic is None or edits.wanted(builder).run is None:
        return Outcome.DONE
    size = size or GangSize(gang.wanted, gang.wanted, int(builder.now))
    waiting = [pod for pod in gang.current if _waits_for_nodes(pod)]
    since = min((waits_since(builder.observed, pod) for pod in waiting), default=None)
    placed = sum(bool(pod.node) for pod in gang.current)
    places = Places(builder.now, placed, since, len(_placed_spares(builder)))
    decided = resized(size, _sizes(spec, size), places, elastic.after_seconds)
    if decided.pods != size.pods:
        _shrink(builder, spec, decided, waiting[0])
        return Outcome.DECIDED
    if decided != size:
        builder.fenced(gang_size=decided)
    if since is not None and builder.now < since + elastic.after_seconds:
        builder.wake(since + elastic.after_seconds)
    if not decided.grows:
        return Outcome.DONE
    if endings.ensure_saved(builder) is Outcome.PENDING:
        builder.say(builder.memory.phase, "Growing", "saving a checkpoint before the gang grows")
        return Outcome.DECIDED
    grow(builder, spec)
    return Outcome.DECIDED


def is_growing(builder: PlanBuilder) -> bool:
    """Whether the orchestrator was asked to end so that the gang may grow."""
    size = builder.memory.gang_size
    return size is not None and size.grows


def grow(builder: PlanBuilder, spec: EchoRLRunSpec) -> None:
    """Begin the attempt with the places that spare pods hold now; they give them up when its gang is let through."""
    size, elastic = builder.memory.gang_size, spec.trainer.elastic
    assert size is not None and elastic is not None  # noqa: S101, PT018 - asked for growing gangs alone
    spares = len(_placed_spares(builder))
    decided = grown(size, _sizes(spec, size), spares, builder.now, elastic.after_seconds)
    more = f"places for {spares} more trainer pods were found: the gang goes on with {decided.pods} of {size.replicas}"
    _remember(builder, decided)
    edits.begin_attempt(builder, spec, Phase.RESTARTING, "GangGrown", more)


def num_spares(builder: PlanBuilder) -> int:
    """How many spare pods the trainer's StatefulSet should have besides the gang."""
    size = builder.memory.gang_size
    if size is None or size.pods == size.replicas or builder.memory.phase is not Phase.RUNNING:
        return 0
    for at in (size.spares_from, size.held_since + HOLD_S):
        if at > builder.now:
            builder.wake(at)
    return spare_pods(size, builder.now)


def admit_spares(builder: PlanBuilder) -> None:
    """Have spare pods look for places. They belong to the attempt, and train nothing."""
    waiting = (pod for pod in builder.observed.spares if pod.gated and pod.meta.deleted_at is None)
    if num_spares(builder):
        builder.do(*(LiftGate(pod.meta.name, pod.meta.uid, pod.meta.resource_version) for pod in waiting))


def missing(builder: PlanBuilder, spec: EchoRLRunSpec | None) -> str | None:
    """How many pods an elastic gang goes on with, since when and why; empty: with all. None: it is not elastic."""
    if spec is None or spec.trainer.elastic is None:
        return None
    size = builder.memory.gang_size
    if size is None or size.pods == size.replicas:
        return ""
    begins = f"{size.pods} of {size.replicas} trainer pods since {to_text(size.since)}: "
    if builder.missing:
        return begins + builder.missing
    conditions = builder.observed.run.status.get("conditions", ())
    told = (str(one.get("message", "")) for one in conditions if one.get("type") == CONDITION)
    return next((message for message in told if message.startswith(begins)), f"{begins}no nodes for more")


def _shrink(builder: PlanBuilder, spec: EchoRLRunSpec, decided: GangSize, pod: PodRecord) -> None:
    why = why_nowhere(pod, scheduler.read(pod.unscheduled), None)
    builder.missing = f"{pod.meta.name} could not be scheduled: {why}"
    words = f"{builder.missing}; the gang goes on with {decided.pods} of {decided.replicas} trainer pods"
    _remember(builder, decided)
    edits.begin_attempt(builder, spec, Phase.RESTARTING, "GangShrunk", words)


def _remember(builder: PlanBuilder, decided: GangSize) -> None:
    builder.remember(gang_size=decided)
    builder.restart = Restart(Role.TRAINER, Cause.RESIZED)


def _sizes(spec: EchoRLRunSpec, size: GangSize) -> tuple[int, ...]:
    """Sizes under the manifest. ``spec``: as the attempt has it."""
    return gang_sizes(with_trainer_pods(spec, size.replicas))


def _is_proven(builder: PlanBuilder, size: GangSize) -> bool:
    """Whether the whole gang has made a step again."""
    state, memory = builder.observed.role_state, builder.memory
    if size.pods != size.replicas or state is None or state.attempt != memory.attempt:
        return False
    return (state.step or 0) > (memory.resume_step or 0)


def _waits_for_nodes(pod: PodRecord) -> bool:
    """Whether it is nodes that a pod waits for: a claim that is missing would be missed by fewer pods, too."""
    return pod.meta.deleted_at is None and is_unscheduled(pod) and not scheduler.read(pod.unscheduled).other


def _placed_spares(builder: PlanBuilder) -> list[PodRecord]:
    return [pod for pod in builder.observed.spares if pod.node and pod.meta.deleted_at is None and not pod.ended]
