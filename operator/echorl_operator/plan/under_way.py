"""A pass over a run whose attempt is under way: from its shared children to a gang that trains.

shared children ---> ends, sizes ---> template ---> prepare ---> engines, orchestrator, gang ---> live settings
"""

from echorl_core.live import settings_of
from echorl_core.names import Phase
from echorl_manifest.compile.failure_policy import restart_policy
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_operator.children.assembly import common, inference_deployment
from echorl_operator.children.cluster_placement import orchestrator_address
from echorl_operator.children.rendering import Rendering, orchestrator_config
from echorl_operator.diagnosis import sandboxes
from echorl_operator.diagnosis.engine_errors import engine_errors
from echorl_operator.observed.records import Kind
from echorl_operator.plan import (
    attempts,
    edits,
    elastic_gang,
    engine_count,
    engines,
    housekeeping,
    lost_nodes,
    recovery,
    replacement,
)
from echorl_operator.plan.actions import ChangeLive
from echorl_operator.plan.builder import PlanBuilder
from echorl_operator.plan.gang import Gang
from echorl_operator.plan.outcome import Outcome

TELL_AGAIN_S = 10.0


def carry_on(builder: PlanBuilder, rendering: Rendering, spec: EchoRLRunSpec) -> None:
    """Decide the first thing that is due in the attempt that there is: another one, or the next step of this one.

    Args:
        builder: takes what is decided.
        rendering: that the attempt rests on.
        spec: that it was made of.
    """
    _shared_children(builder, rendering)
    gang = Gang.of(builder.observed, builder.memory.attempt, spec.trainer.replicas)
    _note_progress(builder, spec)
    lost_nodes.handle_hung_engines(builder)
    if _handle_supersession(builder, spec) is Outcome.DECIDED:
        return
    if builder.memory.admitted() and (followed := _handle_gang(builder, gang, spec)) is not Outcome.DONE:
        if followed is Outcome.PENDING:
            phase, reason, message = builder.phase, builder.reason, builder.message
            attempts.ensure_orchestrator(builder, rendering)
            builder.say(phase, reason, message)
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
    if state.step > (builder.memory.resume_step or 0):
        builder.remember(stepped_attempt=builder.memory.attempt)
    if state.step > builder.memory.step and builder.memory.replaced_at:
        # It had nothing to go on from, and begins as any gang.
        builder.remember(replaced_at=0)
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
