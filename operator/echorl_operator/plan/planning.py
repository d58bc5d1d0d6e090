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
from echorl_manifest.models.run import EchoRLRun, EchoRLRunSpec
from echorl_manifest.mutability import changes
from echorl_manifest.rules.modes import num_engines
from echorl_operator.children.assembly import common, inference_deployment
from echorl_operator.children.cluster_placement import orchestrator_address
from echorl_operator.children.rendering import Rendering, orchestrator_config, spec_of
from echorl_operator.diagnosis.engine_errors import engine_errors
from echorl_operator.diagnosis.obstacles import first_obstacle, refused
from echorl_operator.observed.memory import ENDED
from echorl_operator.observed.records import Kind
from echorl_operator.observed.world import Observed
from echorl_operator.plan import (
    attempts,
    edits,
    endings,
    engines,
    housekeeping,
    leftovers,
    lost_nodes,
    recovery,
    retention,
    retries,
)
from echorl_operator.plan.actions import ChangeLive, Delete, Plan
from echorl_operator.plan.builder import Draft
from echorl_operator.plan.cache import Memo
from echorl_operator.plan.gang import Gang
from echorl_operator.settings import Settings
from echorl_operator.status.conditions import begun
from echorl_operator.status.pass_report import Said
from echorl_operator.status.report import status_of

TELL_AGAIN_S = 10.0
_MEND_NOTHING = frozenset({"spec.storage.retain", "spec.ttlSecondsAfterFinished", "spec.inference.replicas"})
"""What becomes of a run that has ended; and what autoscalers change, which know nothing of runs."""


def plan(observed: Observed, settings: Settings, token: str, memo: Memo | None = None) -> Plan:
    """What to write for one run, now.

    Args:
        observed: the run and all that carries its uid.
        settings: of the installation.
        token: that guards the calls between the run's roles.
        memo: of earlier passes over this run. The plan is the same with any, and takes less time with that one.
    """
    draft = Draft(observed, settings, token, memo)
    if observed.run.deleted_at is not None:
        # Owner references do the rest.
        return Plan(status=observed.run.status)
    if draft.memory.started_at is None:
        draft.remember(started_at=observed.now)
    engines.count_restarts(draft)
    spec = _pass(draft)
    _explain(draft)
    draft.remember(phase=draft.phase)
    wake = None if not draft.wakes else max(0.0, min(draft.wakes) - observed.now)
    status = status_of(observed, draft.memory, _said(draft, spec))
    for one in begun(observed.run.status.get("conditions", ()), status["conditions"]):
        draft.note(one["type"], f"{one['reason']}: {one['message']}", warning=True)
    return Plan(
        status=status,
        actions=tuple(draft.actions),
        # What an ended pod said stands in status before the pod is deleted: afterwards nobody can read it.
        fence=draft.fence or any(isinstance(action, Delete) and action.kind == "Pod" for action in draft.actions),
        notes=tuple(draft.notes),
        wake_after_s=wake,
        restart=draft.restart,
    )


def _explain(draft: Draft) -> None:
    """What stands in the way says more than what the plan waits for."""
    if draft.phase in (*ENDED, Phase.SUSPENDED):
        return
    refusal = draft.observed.refusal
    obstacle = refused(refusal) if refusal and draft.actions else first_obstacle(draft.observed)
    if obstacle is not None:
        draft.problem("Blocked", obstacle.reason, obstacle.message)
        draft.say(draft.phase, obstacle.reason, obstacle.message)
        # Its message tells how long.
        draft.wake(draft.now + 60.0)
        retries.see_to(draft)


def _pass(draft: Draft) -> EchoRLRunSpec | None:
    """Decide; the spec that the decision rests on."""
    wanted = edits.wanted(draft)
    rendering = edits.frozen(draft)
    spec = _decide(draft, wanted, rendering)
    if wanted.spec is not None:
        retention.see_to_owner(draft, wanted.spec)
    if rendering is not None:
        leftovers.remove(draft, rendering)
    return spec


def _decide(draft: Draft, wanted: edits.Wanted, rendering: Rendering | None) -> EchoRLRunSpec | None:
    if draft.memory.phase in ENDED:
        if not _goes_on(draft, wanted.spec, rendering):
            endings.after_the_end(draft, rendering, wanted.spec)
            return wanted.spec
        # The user has seen to what ended it.
        draft.remember(active_since=None, ledger=draft.memory.ledger.forgiven())
    if wanted.run is None:
        draft.problem("InvalidSpec", "Invalid", wanted.problems)
        if rendering is None:
            draft.say(Phase.PENDING, "InvalidSpec", wanted.problems)
            return None
    spec = wanted.spec or spec_of(_known(rendering))
    # Of the manifest as it stands, even if the rest of it cannot be carried out: what was rendered last is older.
    if draft.observed.run.spec.get("suspend") is True:
        endings.suspend(draft, rendering)
        return spec
    # A suspension that was taken back has had its time to save; the next one gets its own.
    draft.remember(stop_asked_at=None, active_since=draft.memory.active_since or draft.now)
    if not _is_too_late(draft, spec):
        _active(draft, wanted.run, rendering, spec)
    return spec


def _active(draft: Draft, run: EchoRLRun | None, rendering: Rendering | None, spec: EchoRLRunSpec) -> None:
    if draft.memory.attempt == 0 or draft.memory.phase in (Phase.SUSPENDED, *ENDED):
        why = "the run begins" if draft.memory.attempt == 0 else "the run goes on"
        edits.begin_attempt(draft, spec, Phase.PREPARING, "AttemptBegins", why)
        return
    if rendering is None:
        if run is not None:
            edits.restore(draft, run)
        return
    if run is not None and edits.edited(draft, rendering, run):
        return
    _attempt(draft, rendering, spec)


def _known(rendering: Rendering | None) -> Rendering:
    assert rendering is not None  # noqa: S101 - the caller has returned otherwise
    return rendering


def _goes_on(draft: Draft, spec: EchoRLRunSpec | None, rendering: Rendering | None) -> bool:
    """Whether the user has changed the manifest of a run that ended so that there is something left to do."""
    if spec is None or draft.observed.run.generation == draft.memory.observed_generation:
        return False
    if draft.memory.phase is Phase.FAILED:
        return rendering is None or _mends_something(rendering.spec, draft.observed.run.spec)
    # Nobody knows what has changed if the rendering is lost; what was done stands in status.
    return spec.max_steps > (draft.memory.step if rendering is None else spec_of(rendering).max_steps)


def _mends_something(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether anything changed but what cannot have been why the run failed."""
    return not {change.path for change in changes(before, after)} <= _MEND_NOTHING


def _is_too_late(draft: Draft, spec: EchoRLRunSpec) -> bool:
    limit, begun = spec.active_deadline_seconds, draft.memory.active_since
    if limit is None or begun is None:
        return False
    if draft.now < begun + limit:
        draft.wake(begun + limit)
        return False
    endings.fail(draft, "DeadlineExceeded", f"the run is active for more than {limit} s (activeDeadlineSeconds)")
    return True


def _attempt(draft: Draft, rendering: Rendering, spec: EchoRLRunSpec) -> None:
    _shared_children(draft, rendering)
    gang = Gang.of(draft.observed, draft.memory.attempt, spec.trainer.replicas)
    _note_progress(draft, spec)
    lost_nodes.see_to_engines(draft)
    if _is_superseded(draft, spec):
        return
    if draft.memory.admitted() and recovery.is_over(draft, gang, spec):
        return
    # Without a gang of this attempt in front of the scheduler nothing stands in the way of its template.
    if not attempts.template_is_current(draft, rendering, spec.trainer.replicas):
        draft.say(draft.phase, "ApplyingTemplate", f"attempt {draft.memory.attempt} is being set up")
        return
    if not attempts.others_are_gone(draft) or not attempts.is_prepared(draft, rendering, spec):
        return
    if draft.fence:
        return  # what prepare found must be in status before anybody acts on it
    _engines(draft, rendering, spec)
    if engines.are_hopeless(draft, spec):
        return
    orchestrated = attempts.has_orchestrator(draft, rendering)
    admitted = attempts.admit(draft, gang)
    if orchestrated and admitted:
        _running(draft)
        _live_settings(draft, rendering)
    elif not draft.message:
        phase = Phase.RUNNING if draft.phase is Phase.RUNNING else Phase.STARTING
        draft.say(phase, "Starting", f"attempt {draft.memory.attempt}: starting engines, orchestrator, trainer")


def _is_superseded(draft: Draft, spec: EchoRLRunSpec) -> bool:
    """Whether another attempt begins, since nothing of this one may go on."""
    if (lost := lost_nodes.lost_alone(draft)) is not None:
        edits.begin_attempt(draft, spec, Phase.RESTARTING, "NodeLost", lost)
        return True
    if (later := attempts.overtaken_by(draft)) is not None:
        why = f"attempt {later} has left its folder on the volume, and status did not know of it"
        edits.begin_attempt(draft, spec, Phase.PREPARING, "StatusLost", why, above=later)
        return True
    return False


def _shared_children(draft: Draft, rendering: Rendering) -> None:
    housekeeping.restore_token(draft, rendering)
    for desired in common(rendering):
        kind = Kind(desired["kind"])
        if kind not in housekeeping.CREATED_ONLY:
            draft.apply(desired, kind)


def _engines(draft: Draft, rendering: Rendering, spec: EchoRLRunSpec) -> None:
    draft.apply(inference_deployment(rendering, num_engines(spec)), Kind.DEPLOYMENT)


def _note_progress(draft: Draft, spec: EchoRLRunSpec) -> None:
    state = draft.observed.role_state
    if state is None or state.step is None or state.attempt != draft.memory.attempt:
        return
    if state.checkpoint is not None and state.checkpoint.step > (draft.memory.resume_step or 0):
        draft.remember(lost_checkpoint="")
    step = max(draft.memory.step, state.step)
    draft.remember(step=step, ledger=draft.memory.ledger.after_progress(step, restart_policy(spec)))


def _running(draft: Draft) -> None:
    state = draft.observed.role_state
    # Once a run is Running it stays so in this attempt: a role that starts again alone is told by conditions, and an
    # orchestrator that does not answer us, or not yet, may well be at work.
    was_running = draft.memory.phase is Phase.RUNNING
    if state is None or state.attempt != draft.memory.attempt:
        phase = Phase.RUNNING if was_running else Phase.STARTING
        draft.say(phase, "WaitingForOrchestrator", "waiting for the orchestrator to answer")
        return
    running = state.phase is Phase.RUNNING or was_running
    message = f"waiting for {state.waiting_for}" if state.waiting_for else "training"
    if wrong := engine_errors(draft.observed, state):
        message = f"{message}; {wrong}"
    draft.say(Phase.RUNNING if running else Phase.STARTING, "Training" if running else "Starting", message)


def _live_settings(draft: Draft, rendering: Rendering) -> None:
    """Send what was edited since the orchestrator was started; sending it again does no harm."""
    state, orchestrator = draft.observed.role_state, draft.orchestrator()
    first = 1
    if state is None or orchestrator is None or not orchestrator.ip or rendering.generation == first:
        return
    if state.attempt == draft.memory.attempt and state.live_generation < rendering.generation:
        settings = settings_of(orchestrator_config(rendering), rendering.generation)
        draft.do(ChangeLive(orchestrator_address(orchestrator.ip), draft.memory.attempt, settings))
        # What is sent takes effect at the next batch; an orchestrator that did not listen is told again.
        draft.wake(draft.now + TELL_AGAIN_S)


def _said(draft: Draft, spec: EchoRLRunSpec | None) -> Said:
    return Said(
        phase=draft.phase,
        reason=draft.reason,
        message=draft.message,
        problems=draft.problems,
        checkpoint_interval=None if spec is None else spec.checkpoint.interval,
        trainer_pods=0 if spec is None else spec.trainer.replicas,
        engines=0 if spec is None else num_engines(spec),
        max_staleness=None if spec is None else spec.algorithm.max_staleness,
        found=draft.found,
    )
