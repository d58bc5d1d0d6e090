"""One pass over a run: from what is observed to what is written.

    nothing has begun ---> begin an attempt ---> prepare ---> admit the gang ---> running ---> succeeded | failed
    (attempts.py)              ^                                                    |
                               +--------- edits.py, recovery.py <-------------------+        suspended (endings.py)

The pass decides the first thing that is due and leaves the rest to the passes that follow from it, so an operator that
dies between any two writes goes on where it was.
"""

from collections.abc import Mapping
from typing import Any

from echorl_core.live import settings_of
from echorl_core.names import Phase
from echorl_manifest.compile.failure_policy import restart_policy
from echorl_manifest.models.environments import Server
from echorl_manifest.models.run import EchoRLRun, EchoRLRunSpec
from echorl_manifest.mutability import changes
from echorl_operator.children.assembly import common, inference_deployment
from echorl_operator.children.cluster_placement import orchestrator_address, served
from echorl_operator.children.rendering import Rendering, orchestrator_config, spec_of
from echorl_operator.diagnosis import sandboxes
from echorl_operator.diagnosis.engine_errors import engine_errors
from echorl_operator.diagnosis.obstacles import first_obstacle, refused
from echorl_operator.observed.memory import ENDED
from echorl_operator.observed.records import Kind
from echorl_operator.observed.world import Observed
from echorl_operator.plan import (
    attempts,
    edits,
    elastic_gang,
    endings,
    engine_count,
    engines,
    housekeeping,
    leftovers,
    lost_nodes,
    recovery,
    replacement,
    retention,
    retries,
)
from echorl_operator.plan.actions import ChangeLive, Delete, Plan
from echorl_operator.plan.builder import PlanBuilder
from echorl_operator.plan.cache import ResultCache
from echorl_operator.plan.elasticity import applied
from echorl_operator.plan.gang import Gang
from echorl_operator.plan.outcome import Outcome
from echorl_operator.settings import Settings
from echorl_operator.status.conditions import begun
from echorl_operator.status.pass_report import PassReport
from echorl_operator.status.report import status_of

TELL_AGAIN_S = 10.0
_MEND_NOTHING = frozenset({"spec.storage.retain", "spec.ttlSecondsAfterFinished", "spec.inference.replicas"})
"""What becomes of a run that has ended; and what autoscalers change, which know nothing of runs."""


def plan(observed: Observed, settings: Settings, token: str, results: ResultCache | None = None) -> Plan:
    """What to write for one run, now.

    Args:
        observed: the run and all that carries its uid.
        settings: of the installation.
        token: that guards the calls between the run's roles.
        results: of earlier passes over this run. The plan is the same with any, and takes less time with that one.
    """
    builder = PlanBuilder(observed, settings, token, results)
    if observed.run.deleted_at is not None:
        # Owner references do the rest.
        return Plan(status=observed.run.status)
    if builder.memory.started_at is None:
        builder.remember(started_at=observed.now)
    engines.count_restarts(builder)
    spec = _pass(builder)
    _explain(builder)
    builder.remember(phase=builder.phase)
    wake = None if not builder.wakes else max(0.0, min(builder.wakes) - observed.now)
    status = status_of(observed, builder.memory, _pass_report(builder, spec))
    for condition in begun(observed.run.status.get("conditions", ()), status["conditions"]):
        builder.note(condition["type"], f"{condition['reason']}: {condition['message']}", warning=True)
    return Plan(
        status=status,
        actions=tuple(builder.actions),
        # What an ended pod said stands in status before the pod is deleted: afterwards nobody can read it.
        fence=builder.fence or any(isinstance(action, Delete) and action.kind == "Pod" for action in builder.actions),
        notes=tuple(builder.notes),
        wake_after_s=wake,
        restart=builder.restart,
    )


def _explain(builder: PlanBuilder) -> None:
    """What stands in the way says more than what the plan waits for."""
    if builder.phase in (*ENDED, Phase.SUSPENDED) or builder.missing:
        return
    if sandboxes.tally(builder.observed).waiting:
        # What is told depends on how long.
        builder.wake(builder.now + sandboxes.PATIENCE_S / 2)
    refusal = builder.observed.refusal
    obstacle = refused(refusal) if refusal and builder.actions else first_obstacle(builder.observed)
    if obstacle is not None:
        builder.problem("Blocked", obstacle.reason, obstacle.message)
        builder.say(builder.phase, obstacle.reason, obstacle.message)
        # Its message tells how long.
        builder.wake(builder.now + 60.0)
        retries.retry_controllers(builder)


def _pass(builder: PlanBuilder) -> EchoRLRunSpec | None:
    """Decide; the spec that the decision rests on."""
    wanted = edits.wanted(builder)
    rendering = edits.frozen(builder)
    spec = _decide(builder, wanted, rendering)
    if wanted.spec is not None:
        retention.ensure_owner(builder, wanted.spec)
    if rendering is not None:
        leftovers.remove(builder, rendering)
    return spec


def _decide(builder: PlanBuilder, wanted: edits.Wanted, rendering: Rendering | None) -> EchoRLRunSpec | None:
    if builder.memory.phase in ENDED:
        if not _goes_on(builder, wanted.spec, rendering):
            endings.after_the_end(builder, rendering, wanted.spec)
            return wanted.spec
        # The user has seen to what ended it.
        builder.remember(active_since=None, ledger=builder.memory.ledger.forgiven())
    if wanted.run is None:
        builder.problem("InvalidSpec", "Invalid", wanted.problems)
        if rendering is None:
            builder.say(Phase.PENDING, "InvalidSpec", wanted.problems)
            return None
    spec = wanted.spec or _frozen_spec(_known(rendering))
    if spec is None:
        builder.say(builder.phase, "InvalidSpec", f"the attempt was rendered by another version: {wanted.problems}")
        return None
    # Of the manifest as it stands, even if the rest of it cannot be carried out: what was rendered last is older.
    if builder.observed.run.spec.get("suspend") is True:
        endings.suspend(builder, rendering)
        return spec
    # A suspension that was taken back has had its time to save; the next one gets its own.
    asked_at = builder.memory.stop_asked_at if elastic_gang.is_growing(builder) else None
    builder.remember(stop_asked_at=asked_at, active_since=builder.memory.active_since or builder.now)
    if _enforce_deadline(builder, spec) is Outcome.DONE:
        _active(builder, wanted.run, rendering, spec)
    return spec


def _active(builder: PlanBuilder, run: EchoRLRun | None, rendering: Rendering | None, spec: EchoRLRunSpec) -> None:
    if builder.memory.attempt == 0 or builder.memory.phase in (Phase.SUSPENDED, *ENDED):
        why = "the run begins" if builder.memory.attempt == 0 else "the run goes on"
        builder.remember(gang_size=None)
        edits.begin_attempt(builder, spec, Phase.PREPARING, "AttemptBegins", why)
        return
    if rendering is None:
        if run is not None:
            edits.restore(builder, run)
        return
    if run is not None and edits.handle_edit(builder, rendering, run) is Outcome.DECIDED:
        return
    _attempt(builder, rendering, spec)


def _frozen_spec(rendering: Rendering) -> EchoRLRunSpec | None:
    """What the attempt was rendered from; None if only another version can read it, as after a rollback."""
    try:
        return spec_of(rendering)
    except ValueError:
        return None


def _known(rendering: Rendering | None) -> Rendering:
    assert rendering is not None  # noqa: S101 - the caller has returned otherwise
    return rendering


def _goes_on(builder: PlanBuilder, spec: EchoRLRunSpec | None, rendering: Rendering | None) -> bool:
    """Whether the user has changed the manifest of a run that ended so that there is something left to do."""
    if spec is None or builder.observed.run.generation == builder.memory.rendered_generation:
        return False
    if builder.memory.phase is Phase.FAILED:
        after = applied(builder.observed.run.spec, builder.memory.gang_size)
        return rendering is None or _mends_something(rendering.spec, after)
    # Nobody knows what has changed if the rendering is lost; what was done stands in status.
    frozen = None if rendering is None else _frozen_spec(rendering)
    return spec.max_steps > (builder.memory.step if frozen is None else frozen.max_steps)


def _mends_something(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether anything changed but what cannot have been why the run failed."""
    return not {change.path for change in changes(before, after)} <= _MEND_NOTHING


def _enforce_deadline(builder: PlanBuilder, spec: EchoRLRunSpec) -> Outcome:
    """Fail a run that is active for longer than ``activeDeadlineSeconds``."""
    limit, begun = spec.active_deadline_seconds, builder.memory.active_since
    if limit is None or begun is None:
        return Outcome.DONE
    if builder.now < begun + limit:
        builder.wake(begun + limit)
        return Outcome.DONE
    endings.fail(builder, "DeadlineExceeded", f"the run is active for more than {limit} s (activeDeadlineSeconds)")
    return Outcome.DECIDED


def _attempt(builder: PlanBuilder, rendering: Rendering, spec: EchoRLRunSpec) -> None:
    _shared_children(builder, rendering)
    gang = Gang.of(builder.observed, builder.memory.attempt, spec.trainer.replicas)
    _note_progress(builder, spec)
    lost_nodes.handle_hung_engines(builder)
    if _handle_supersession(builder, spec) is Outcome.DECIDED:
        return
    if builder.memory.admitted() and _handle_gang(builder, gang, spec) is not Outcome.DONE:
        return
    # Without a gang of this attempt in front of the scheduler nothing stands in the way of its template.
    pods = spec.trainer.replicas + elastic_gang.num_spares(builder)
    if attempts.ensure_template(builder, rendering, pods) is Outcome.PENDING:
        builder.say(builder.phase, "ApplyingTemplate", f"attempt {builder.memory.attempt} is being set up")
        return
    if attempts.ensure_others_gone(builder) is Outcome.PENDING:
        return
    # What prepare found must be in status before anybody acts on it.
    if attempts.ensure_prepared(builder, rendering, spec) is Outcome.PENDING or builder.fence:
        return
    engine_count.autoscale(builder, spec)
    wanted = engine_count.wanted(builder.memory, spec)
    builder.ensure_applied(inference_deployment(rendering, wanted), Kind.DEPLOYMENT)
    if engines.handle_engine_ends(builder, spec) is Outcome.DECIDED:
        return
    # Both are asked for in one pass: neither waits for the other.
    orchestrator, admission = attempts.ensure_orchestrator(builder, rendering), attempts.ensure_admitted(builder, gang)
    if Outcome.PENDING not in (orchestrator, admission):
        elastic_gang.admit_spares(builder)
        _running(builder, spec)
        _live_settings(builder, rendering)
    elif not builder.message:
        phase = Phase.RUNNING if builder.phase is Phase.RUNNING else Phase.STARTING
        builder.say(phase, "Starting", f"attempt {builder.memory.attempt}: starting engines, orchestrator, trainer")


def _handle_gang(builder: PlanBuilder, gang: Gang, spec: EchoRLRunSpec) -> Outcome:
    """See to the ends of pods, and to the size of the gang. Pending: others are to take the place of lost pods."""
    followed = replacement.handle_losses(builder, gang, spec)
    if followed is Outcome.DONE:
        followed = recovery.handle_ends(builder, replacement.without_history(builder, gang, spec), spec)
    if followed is not Outcome.DECIDED and elastic_gang.handle_size(builder, gang, spec) is Outcome.DECIDED:
        return Outcome.DECIDED
    return followed


def _handle_supersession(builder: PlanBuilder, spec: EchoRLRunSpec) -> Outcome:
    """Begin another attempt if nothing of this one may go on."""
    if (lost := lost_nodes.lost_alone(builder)) is not None:
        edits.begin_attempt(builder, spec, Phase.RESTARTING, "NodeLost", lost)
        return Outcome.DECIDED
    if (later := attempts.overtaken_by(builder)) is not None:
        why = f"attempt {later} has left its folder on the volume, and status did not know of it"
        edits.begin_attempt(builder, spec, Phase.PREPARING, "StatusLost", why, above=later)
        return Outcome.DECIDED
    return Outcome.DONE


def _shared_children(builder: PlanBuilder, rendering: Rendering) -> None:
    housekeeping.restore_token(builder, rendering)
    for desired in common(rendering):
        kind = Kind(desired["kind"])
        if kind not in housekeeping.CREATED_ONLY:
            builder.ensure_applied(desired, kind)


def _note_progress(builder: PlanBuilder, spec: EchoRLRunSpec) -> None:
    state = builder.observed.role_state
    if state is None or state.step is None or state.attempt != builder.memory.attempt:
        return
    if state.checkpoint is not None and state.checkpoint.step > (builder.memory.resume_step or 0):
        builder.remember(lost_checkpoint="")
    step = max(builder.memory.step, state.step)
    builder.remember(step=step, ledger=builder.memory.ledger.after_progress(step, restart_policy(spec)))
    recovery.count_restarts_in_place(builder, state)
    replacement.count_replacements(builder, state)


def _running(builder: PlanBuilder, spec: EchoRLRunSpec) -> None:
    state = builder.observed.role_state
    # Once a run is Running it stays so in this attempt: a role that starts again alone is told by conditions, and an
    # orchestrator that does not answer us, or not yet, may well be at work.
    was_running = builder.memory.phase is Phase.RUNNING
    if state is None or state.attempt != builder.memory.attempt:
        phase = Phase.RUNNING if was_running else Phase.STARTING
        builder.say(phase, "WaitingForOrchestrator", "waiting for the orchestrator to answer")
        return
    running = state.phase is Phase.RUNNING or was_running
    message = f"waiting for {state.waiting_for}" if state.waiting_for else "training"
    if builder.memory.replaced_at:
        message = "waiting for the gang to go on with a pod that takes the place of a lost one"
    if missing := elastic_gang.missing(builder, spec):
        message = f"{message}, with {missing}"
    if wrong := engine_errors(builder.observed, state):
        message = f"{message}; {wrong}"
    if late := sandboxes.late_words(builder.observed):
        message = f"{message}; {late}"
    builder.say(Phase.RUNNING if running else Phase.STARTING, "Training" if running else "Starting", message)


def _live_settings(builder: PlanBuilder, rendering: Rendering) -> None:
    """Send what was edited since the orchestrator was started; sending it again does no harm."""
    state, orchestrator = builder.observed.role_state, builder.orchestrator()
    first = 1
    if state is None or orchestrator is None or not orchestrator.ip or rendering.generation == first:
        return
    if state.attempt == builder.memory.attempt and state.live_generation < rendering.generation:
        try:
            settings = settings_of(orchestrator_config(rendering), rendering.generation)
        except ValueError:
            # As after a rollback: nobody here can read what is to be sent.
            builder.say(
                builder.phase, builder.reason, f"{builder.message}; edits of another version wait for an attempt"
            )
            return
        builder.do(ChangeLive(orchestrator_address(orchestrator.ip), builder.memory.attempt, settings))
        # What is sent takes effect at the next batch; an orchestrator that did not listen is told again.
        builder.wake(builder.now + TELL_AGAIN_S)


def _pass_report(builder: PlanBuilder, spec: EchoRLRunSpec | None) -> PassReport:
    return PassReport(
        phase=builder.phase,
        reason=builder.reason,
        message=builder.message,
        problems=builder.problems,
        checkpoint_interval=None if spec is None else spec.checkpoint.interval,
        trainer_pods=0 if spec is None else spec.trainer.replicas,
        engines=0 if spec is None else engine_count.wanted(builder.memory, spec),
        servers=0 if spec is None else sum((one.server or Server()).replicas for one in served(spec)),
        autoscale=builder.autoscale,
        max_staleness=None if spec is None else spec.algorithm.max_staleness,
        preparation=builder.preparation,
        missing=elastic_gang.missing(builder, spec),
    )
