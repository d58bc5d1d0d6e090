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
from echorl_operator.plan import endings, housekeeping, lost_nodes
from echorl_operator.plan.actions import Create, LiftGate
from echorl_operator.plan.builder import Draft
from echorl_operator.plan.causes import cause_of_pod
from echorl_operator.plan.deaths import death_of, exit_code, words
from echorl_operator.plan.gang import Gang, digest

ATTEMPT_ROLES = (PodRole.TRAINER, PodRole.ORCHESTRATOR, PodRole.PREPARE)


def highest_attempt(draft: Draft) -> int:
    """The highest attempt that status, or any child's label, knows of."""
    pods = (pod.attempt for pod in draft.observed.pods)
    revisions = (
        _attempt_of(child.meta.name, draft.observed.run.key.name)
        for child in draft.observed.children
        if child.kind is Kind.REVISION
    )
    return max([draft.memory.attempt, *pods, *revisions])


def template_is_current(draft: Draft, rendering: Rendering, replicas: int) -> bool:
    """Whether the StatefulSet is of this attempt and its controller knows; else that is seen to."""
    desired = trainer_set(rendering, draft.memory.attempt, replicas)
    if not draft.apply(desired, Kind.STATEFUL_SET, guarded=True):
        return False
    live = draft.child(Kind.STATEFUL_SET, names.trainer(rendering.run))
    return live is not None and live.observed_generation >= live.meta.generation


def others_are_gone(draft: Draft) -> bool:
    """Whether no pod of another attempt is left; else they are deleted and waited for."""
    old = [pod for pod in draft.observed.pods if pod.role in ATTEMPT_ROLES and pod.attempt != draft.memory.attempt]
    draft.delete_pods(old, f"attempt {draft.memory.attempt} begins")
    hung = lost_nodes.hung(draft, old)
    if hung:
        draft.say(draft.phase, "NodeLost", lost_nodes.see_to(draft, hung))
    elif old:
        listed = ", ".join(pod.meta.name for pod in old[:3]) + (" ..." if len(old) > 3 else "")
        draft.say(draft.phase, "EndingOldAttempt", f"waiting for {len(old)} pods of older attempts to end: {listed}")
    return not old


def overtaken_by(draft: Draft) -> int | None:
    """The later attempt that prepare found on the volume, of which neither status nor a label knows; None if none."""
    for pod in draft.pods(PodRole.PREPARE):
        if pod.attempt == draft.memory.attempt and exit_code(pod) == ExitCode.FENCED:
            said = words(pod)
            return None if said is None else said.last_attempt
    return None


def is_prepared(draft: Draft, rendering: Rendering, spec: EchoRLRunSpec) -> bool:
    """Whether prepare has finished for this attempt, and status said so before this pass."""
    memory = draft.memory
    if memory.prepared == memory.attempt:
        return True
    if memory.not_before is not None and draft.now < memory.not_before:
        draft.wake(memory.not_before)
        seconds = memory.not_before - draft.now
        draft.say(draft.phase, "BackOff", f"attempt {memory.attempt} begins in {seconds:.0f} s")
        return False
    draft.say(Phase.PREPARING, "Preparing", f"attempt {memory.attempt}: choosing the step to begin at")
    pod = next((pod for pod in draft.pods(PodRole.PREPARE) if pod.attempt == memory.attempt), None)
    if pod is None:
        housekeeping.create_once(draft, rendering)
        draft.do(Create(prepare_pod(rendering, memory.attempt, spec.resume)))
    elif pod.phase is PodPhase.SUCCEEDED:
        _note_preparation(draft, pod)
    elif pod.phase is PodPhase.FAILED and pod.meta.deleted_at is None:
        _preparation_failed(draft, pod, spec)
    return False


def _note_preparation(draft: Draft, pod: PodRecord) -> None:
    said = words(pod)
    prepared = None if said is None else said.prepared
    if prepared is None:
        # The pod ended well, so prepare has done its work; what it said was lost with the node's memory of it.
        draft.delete_pods([pod], "it ended without saying what it did; prepare is repeatable")
        return
    draft.found = prepared
    draft.fenced(
        lost_checkpoint=_lost(draft, prepared)[:MAX_SHORT],
        prepared=draft.memory.attempt,
        resume_step=prepared.resume_step,
        model_commit=prepared.model_commit or draft.memory.model_commit,
        not_before=None,
        preparations=0,
    )
    begins = f"attempt {draft.memory.attempt} begins at step {prepared.resume_step}"
    removed = f"; removed {prepared.removed_count} leftovers" if prepared.removed_count else ""
    draft.note("Prepared", begins + removed)
    for one in prepared.skipped:
        draft.note("CheckpointSkipped", f"checkpoint {one.step}: {one.reason}", warning=True)
    if draft.memory.lost_checkpoint:
        draft.note("CheckpointLost", draft.memory.lost_checkpoint, warning=True)


def _lost(draft: Draft, prepared: Preparation) -> str:
    """Which committed checkpoint the attempt should have begun at and does not; empty if there is none."""
    newer = [one for one in prepared.skipped if one.step > prepared.resume_step]
    if damaged := next((one for one in newer if one.damaged), None):
        return f"checkpoint {damaged.step} is damaged: {damaged.reason}"
    known = (draft.observed.run.status.get("checkpoint") or {}).get("step", 0)
    asked_back = draft.observed.run.block("resume").get("policy") == "FromStep"
    if known <= prepared.resume_step or asked_back or any(one.step == known for one in newer):
        return ""
    return f"checkpoint {known} was committed and is not on the volume any more"


def _preparation_failed(draft: Draft, pod: PodRecord, spec: EchoRLRunSpec) -> None:
    if pod.meta.uid == draft.memory.counted:
        draft.delete_pods([pod], "prepare is tried again")
        return
    death = death_of_prepare(pod)
    failures = draft.memory.preparations + 1
    if exit_code(pod) == ExitCode.BAD_INPUT:
        endings.fail(draft, "InvalidInput", death)
    elif failures > spec.failure_policy.max_restarts:
        endings.fail(draft, "PrepareFailed", f"{death}; prepare failed {failures} times")
    else:
        delay = min(spec.failure_policy.backoff_seconds * 2.0 ** (failures - 1), MAX_BACKOFF_S)
        draft.fenced(counted=pod.meta.uid, preparations=failures, not_before=draft.now + delay)
        draft.restart = Restart(PodRole.PREPARE, cause_of_pod(pod))
        draft.delete_pods([pod], "prepare is tried again")
        draft.note("PrepareFailed", death, warning=True)
        draft.say(Phase.PREPARING, "PrepareFailed", f"{death}; next try in {delay:.0f} s")


def death_of_prepare(pod: PodRecord) -> str:
    """Why a prepare pod failed, in one clause."""
    said = words(pod)
    return said.message if said is not None and said.message else death_of(pod).cause


def has_orchestrator(draft: Draft, rendering: Rendering) -> bool:
    """Whether this attempt's orchestrator pod is there and not ending; else it is created, after its back-off."""
    pods, not_before = draft.pods(PodRole.ORCHESTRATOR), draft.memory.not_before
    if not_before is not None and draft.now < not_before and not any(not pod.ended for pod in pods):
        draft.wake(not_before)
        draft.say(draft.phase, "BackOff", f"the orchestrator starts again at {to_text(not_before)} (back-off)")
    elif not pods:
        draft.remember(not_before=None)
        draft.do(Create(orchestrator_pod(rendering, draft.memory.attempt)))
    return any(pod.meta.deleted_at is None and not pod.ended for pod in pods)


def admit(draft: Draft, gang: Gang) -> bool:
    """Lift the gates of a whole gang, once status names its pods. Whether none is left to lift."""
    memory = draft.memory
    if not memory.admitted():
        if not gang.waits_whole:
            draft.say(Phase.STARTING, "GangIncomplete", f"{len(gang.current)} of {gang.wanted} trainer pods exist")
            return False
        # The gates are lifted by the pass that follows: where many runs start at once, engines and orchestrators of
        # all of them come first, since they take longest to be ready.
        draft.fenced(admission=Admission(memory.attempt, digest(gang.current)))
        return False
    gated = [pod for pod in gang.current if pod.gated]
    draft.do(*(LiftGate(pod.meta.name, pod.meta.uid, pod.meta.resource_version) for pod in gated))
    return not gated


def _attempt_of(revision: str, run: str) -> int:
    middle = revision.removeprefix(f"{run}-").partition("-")[0]
    return int(middle) if middle.isdigit() else 0
