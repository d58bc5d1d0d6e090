"""The beginning of an attempt, each step derived from what is observed.

1. status names the attempt and the ControllerRevision that its children are applied from (a fence);
2. the StatefulSet's template is of the attempt, and its controller has seen that;
3. pods of other attempts are deleted, and gone;
4. the back-off is over; prepare has finished, and status says at which step the attempt begins (a fence);
5. engines and orchestrator are there, and all pods of the gang;
6. status names these pods (a fence), and their gates are lifted.

Template before pods: the other way round, the controller brings pods of the old attempt back.
"""

from echorl_core.names import ExitCode, Phase
from echorl_core.restarts import MAX_BACKOFF_S
from echorl_core.termination_message import Preparation
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.models.status import MAX_SHORT
from echorl_operator import names
from echorl_operator.accounting.restarts import Restart
from echorl_operator.children.assembly import orchestrator_pod, prepare_pod, trainer_set
from echorl_operator.children.rendering import Rendering
from echorl_operator.names import PodRole
from echorl_operator.observed.memory import Admission
from echorl_operator.observed.records import Kind, PodPhase, PodRecord
from echorl_operator.observed.times import to_text
from echorl_operator.plan import endings, environments, housekeeping, lost_nodes
from echorl_operator.plan.actions import Create, LiftGate
from echorl_operator.plan.builder import PlanBuilder
from echorl_operator.plan.causes import cause_of_pod
from echorl_operator.plan.deaths import death_of, exit_code, termination_message_of
from echorl_operator.plan.gang import Gang, digest
from echorl_operator.plan.outcome import Outcome

OLD_PODS_END_S = 10
"""Grace period of an older attempt's pods: its gang is broken or unwanted, and nobody reports to its orchestrator."""

ATTEMPT_ROLES = (PodRole.TRAINER, PodRole.ORCHESTRATOR, PodRole.PREPARE)


def highest_attempt(builder: PlanBuilder) -> int:
    """The highest attempt that status, the run's ControllerRevisions or its pods know of.

    Whoever may edit pods may change a label: what one says is no attempt if it is further than one above all others.
    """
    run = builder.observed.run
    revisions = (
        _attempt_of(child.meta.name, run.key.name)
        for child in builder.observed.children
        if child.kind is Kind.REVISION and child.meta.owner_uid == run.uid
    )
    highest = max([builder.memory.attempt, *revisions])
    return max([highest, *(pod.attempt for pod in builder.observed.pods if pod.attempt <= highest + 1)])


def ensure_template(builder: PlanBuilder, rendering: Rendering, replicas: int) -> Outcome:
    """Make the StatefulSet one of this attempt, and wait until its controller knows."""
    desired = trainer_set(rendering, builder.memory.attempt, replicas)
    if builder.ensure_applied(desired, Kind.STATEFUL_SET, guarded=True) is Outcome.PENDING:
        return Outcome.PENDING
    live = builder.child(Kind.STATEFUL_SET, names.trainer(rendering.run))
    is_seen = live is not None and live.observed_generation >= live.meta.generation
    return Outcome.DONE if is_seen else Outcome.PENDING


def ensure_others_gone(builder: PlanBuilder) -> Outcome:
    """Delete the pods of other attempts, and wait until none is left."""
    old = [pod for pod in builder.observed.pods if pod.role in ATTEMPT_ROLES and pod.attempt != builder.memory.attempt]
    builder.delete_pods(old, f"attempt {builder.memory.attempt} begins", grace_s=OLD_PODS_END_S)
    hung = lost_nodes.hung(builder, old)
    if hung:
        builder.say(builder.phase, "NodeLost", lost_nodes.handle_hung_pods(builder, hung))
    elif old:
        listed = ", ".join(pod.meta.name for pod in old[:3]) + (" ..." if len(old) > 3 else "")
        builder.say(
            builder.phase, "EndingOldAttempt", f"waiting for {len(old)} pods of older attempts to end: {listed}"
        )
    return Outcome.PENDING if old else Outcome.DONE


def overtaken_by(builder: PlanBuilder) -> int | None:
    """The later attempt that prepare found on the volume, of which neither status nor a label knows; None if none."""
    for pod in builder.pods(PodRole.PREPARE):
        if pod.attempt == builder.memory.attempt and exit_code(pod) == ExitCode.FENCED:
            message = termination_message_of(pod)
            return None if message is None else message.last_attempt
    return None


def ensure_prepared(builder: PlanBuilder, rendering: Rendering, spec: EchoRLRunSpec) -> Outcome:
    """Have the attempt prepared once its back-off is over, and wait until status says at which step it begins."""
    memory = builder.memory
    if memory.prepared == memory.attempt:
        return Outcome.DONE
    if memory.not_before is not None and builder.now < memory.not_before:
        builder.wake(memory.not_before)
        seconds = memory.not_before - builder.now
        builder.say(builder.phase, "BackOff", f"attempt {memory.attempt} begins in {seconds:.0f} s")
        return Outcome.PENDING
    builder.say(Phase.PREPARING, "Preparing", f"attempt {memory.attempt}: choosing the step to begin at")
    pod = next((pod for pod in builder.pods(PodRole.PREPARE) if pod.attempt == memory.attempt), None)
    if pod is None:
        housekeeping.create_once(builder, rendering)
        builder.do(Create(prepare_pod(rendering, memory.attempt, spec.resume)))
    elif pod.phase is PodPhase.SUCCEEDED:
        _note_preparation(builder, pod)
    elif pod.phase is PodPhase.FAILED and pod.meta.deleted_at is None:
        _handle_failed_preparation(builder, pod, spec)
    return Outcome.PENDING


def _note_preparation(builder: PlanBuilder, pod: PodRecord) -> None:
    message = termination_message_of(pod)
    prepared = None if message is None else message.prepared
    if prepared is None:
        # The pod ended well, so prepare has done its work; what it said was lost with the node's memory of it.
        builder.delete_pods([pod], "it ended without saying what it did; prepare is repeatable")
        return
    builder.preparation = prepared
    builder.fenced(
        lost_checkpoint=_lost(builder, prepared)[:MAX_SHORT],
        prepared=builder.memory.attempt,
        resume_step=prepared.resume_step,
        model_commit=(prepared.model_commit or builder.memory.model_commit)[:MAX_SHORT],
        not_before=None,
        preparations=0,
    )
    begins = f"attempt {builder.memory.attempt} begins at step {prepared.resume_step}"
    removed = f"; removed {prepared.removed_count} leftovers" if prepared.removed_count else ""
    builder.note("Prepared", begins + removed)
    for skipped in prepared.skipped:
        builder.note("CheckpointSkipped", f"checkpoint {skipped.step}: {skipped.reason}", warning=True)
    if builder.memory.lost_checkpoint:
        builder.note("CheckpointLost", builder.memory.lost_checkpoint, warning=True)


def _lost(builder: PlanBuilder, prepared: Preparation) -> str:
    """Which committed checkpoint the attempt should have begun at and does not; empty if there is none."""
    newer = [skipped for skipped in prepared.skipped if skipped.step > prepared.resume_step]
    if damaged := next((skipped for skipped in newer if skipped.damaged), None):
        return f"checkpoint {damaged.step} is damaged: {damaged.reason}"
    committed = (builder.observed.run.status.get("checkpoint") or {}).get("step", 0)
    asked_back = builder.observed.run.block("resume").get("policy") == "FromStep"
    if committed <= prepared.resume_step or asked_back or any(skipped.step == committed for skipped in newer):
        return ""
    return f"checkpoint {committed} was committed and is not on the volume any more"


def _handle_failed_preparation(builder: PlanBuilder, pod: PodRecord, spec: EchoRLRunSpec) -> None:
    if pod.meta.uid == builder.memory.counted:
        builder.delete_pods([pod], "prepare is tried again")
        return
    death = death_of_prepare(pod)
    # One that was evicted has not failed.
    failures = builder.memory.preparations + (not death_of(pod).notice)
    if exit_code(pod) == ExitCode.BAD_INPUT:
        endings.fail(builder, "InvalidInput", death)
    elif failures > spec.failure_policy.max_restarts:
        endings.fail(builder, "PrepareFailed", f"{death}; prepare failed {failures} times")
    else:
        delay = min(spec.failure_policy.backoff_seconds * 2.0 ** max(0, failures - 1), MAX_BACKOFF_S)
        builder.fenced(counted=pod.meta.uid, preparations=failures, not_before=builder.now + delay)
        builder.restart = Restart(PodRole.PREPARE, cause_of_pod(pod))
        builder.delete_pods([pod], "prepare is tried again")
        builder.note("PrepareFailed", death, warning=True)
        builder.say(Phase.PREPARING, "PrepareFailed", f"{death}; next try in {delay:.0f} s")


def death_of_prepare(pod: PodRecord) -> str:
    """Why a prepare pod failed, in one clause."""
    message = termination_message_of(pod)
    return message.message if message is not None and message.message else death_of(pod).cause


def ensure_orchestrator(builder: PlanBuilder, rendering: Rendering) -> Outcome:
    """Create this attempt's orchestrator pod once its back-off is over, unless one is there that is not ending.

    Not before the servers of its environments are ready: it takes one that does not answer for a wrong manifest.
    """
    pods, not_before = builder.pods(PodRole.ORCHESTRATOR), builder.memory.not_before
    if not_before is not None and builder.now < not_before and not any(not pod.ended for pod in pods):
        builder.wake(not_before)
        builder.say(builder.phase, "BackOff", f"the orchestrator starts again at {to_text(not_before)} (back-off)")
    elif not pods and (unready := environments.unready_servers(builder, rendering)):
        listed = ", ".join(unready[:3]) + (" ..." if len(unready) > 3 else "")
        phase = Phase.RUNNING if builder.phase is Phase.RUNNING else Phase.STARTING
        builder.say(phase, "WaitingForEnvironments", f"waiting for servers of environments: {listed}")
    elif not pods:
        builder.remember(not_before=None)
        builder.do(Create(orchestrator_pod(rendering, builder.memory.attempt)))
    is_there = any(pod.meta.deleted_at is None and not pod.ended for pod in pods)
    return Outcome.DONE if is_there else Outcome.PENDING


def ensure_admitted(builder: PlanBuilder, gang: Gang) -> Outcome:
    """Lift the gates of a whole gang, once status names its pods."""
    memory = builder.memory
    if not memory.admitted():
        if not gang.waits_whole:
            builder.say(Phase.STARTING, "GangIncomplete", f"{len(gang.current)} of {gang.wanted} trainer pods exist")
            return Outcome.PENDING
        # The gates are lifted by the pass that follows: where many runs start at once, engines and orchestrators of
        # all of them come first, since they take longest to be ready.
        builder.fenced(admission=Admission(memory.attempt, digest(gang.current)))
        return Outcome.PENDING
    gated = [pod for pod in gang.current if pod.gated]
    builder.do(*(LiftGate(pod.meta.name, pod.meta.uid, pod.meta.resource_version) for pod in gated))
    return Outcome.PENDING if gated else Outcome.DONE


def _attempt_of(revision: str, run: str) -> int:
    middle = revision.removeprefix(f"{run}-").partition("-")[0]
    return int(middle) if middle.isdigit() else 0
