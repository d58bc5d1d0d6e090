"""How runs stop: suspended, succeeded, failed; and what happens after that."""

from echorl_core.names import Phase
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_operator import names
from echorl_operator.children.assembly import inference_deployment, trainer_set
from echorl_operator.children.cluster_placement import orchestrator_address
from echorl_operator.children.rendering import Rendering
from echorl_operator.names import PodRole
from echorl_operator.observed.memory import ENDED
from echorl_operator.observed.records import Kind
from echorl_operator.plan import lost_nodes
from echorl_operator.plan.actions import AskToStop, DeleteRun
from echorl_operator.plan.builder import Draft

STOP_WITHIN_S = 900.0
"""How long a run may take to finish its step and save before it is ended without that."""
ASK_AGAIN_S = 10.0


def fail(draft: Draft, reason: str, message: str) -> None:
    """The run ends in Failed; its pods go from the next pass on."""
    draft.fenced(phase=Phase.FAILED, ended_at=draft.now, failure=reason)
    draft.say(Phase.FAILED, reason, message)
    draft.note(reason, message, warning=True)


def succeed(draft: Draft, message: str) -> None:
    """The run ends in Succeeded; its pods go from the next pass on."""
    draft.fenced(phase=Phase.SUCCEEDED, ended_at=draft.now, failure="")
    draft.say(Phase.SUCCEEDED, "Finished", message)
    draft.note("Succeeded", message)


def scale_to_zero(draft: Draft, rendering: Rendering | None) -> bool:
    """Let GPUs go: no trainer pods, no engines. Whether that is so."""
    name = draft.observed.run.key.name
    trainer = draft.child(Kind.STATEFUL_SET, names.trainer(name))
    engines = draft.child(Kind.DEPLOYMENT, names.inference(name))
    if rendering is None:
        # Nothing says any more how they look; without pods they are of no use.
        for child in (trainer, engines):
            if child is not None:
                draft.delete_child(child, "the run has ended")
        return trainer is None and engines is None
    done = True
    if trainer is not None:
        done &= draft.apply(trainer_set(rendering, draft.memory.attempt, 0), Kind.STATEFUL_SET, guarded=True)
    if engines is not None:
        done &= draft.apply(inference_deployment(rendering, 0), Kind.DEPLOYMENT)
    return done


def after_the_end(draft: Draft, rendering: Rendering | None, spec: EchoRLRunSpec | None) -> None:
    """A run that succeeded or failed: free what it held, and delete it when its time to live is over."""
    assert draft.memory.phase in ENDED  # noqa: S101 - asked for these alone
    status = draft.observed.run.status
    draft.say(draft.memory.phase, draft.memory.failure or "Finished", str(status.get("message", "")))
    scale_to_zero(draft, rendering)
    # A pod that has ended by itself stays, for its logs.
    living = [pod for role in (PodRole.ORCHESTRATOR, PodRole.PREPARE) for pod in draft.pods(role) if not pod.ended]
    draft.delete_pods(living, "the run has ended")
    hung = lost_nodes.hung(draft, (pod for pod in draft.observed.pods if pod.role is not None))
    if hung:
        lost_nodes.see_to(draft, hung)
    ttl = None if spec is None else spec.ttl_seconds_after_finished
    if ttl is not None and draft.memory.ended_at is not None:
        if draft.now >= draft.memory.ended_at + ttl:
            draft.do(DeleteRun(draft.observed.run.uid))
        else:
            draft.wake(draft.memory.ended_at + ttl)


def suspend(draft: Draft, rendering: Rendering | None) -> None:
    """No pods, at the last step that could be committed: ask, wait, then end them."""
    draft.remember(active_since=None)
    if draft.memory.admitted() and _is_saving(draft):
        return
    scale_to_zero(draft, rendering)
    pods = [pod for pod in draft.observed.pods if pod.role is not None]
    bare = [pod for pod in pods if pod.role in (PodRole.ORCHESTRATOR, PodRole.PREPARE)]
    draft.delete_pods(bare, "the run is suspended")
    if hung := lost_nodes.hung(draft, pods):
        draft.say(draft.memory.phase, "NodeLost", lost_nodes.see_to(draft, hung))
    elif pods:
        draft.say(draft.memory.phase, "Suspending", f"waiting for {len(pods)} pods to end")
    else:
        draft.remember(admission=None, prepared=0, stop_asked_at=None, not_before=None)
        draft.say(Phase.SUSPENDED, "Suspended", "suspended by spec.suspend; false goes on from the last checkpoint")


def _is_saving(draft: Draft) -> bool:
    """Whether an orchestrator may still save; it is asked to."""
    orchestrator = draft.orchestrator()
    if orchestrator is None:
        return False
    asked_at = draft.memory.stop_asked_at
    if asked_at is None:
        asked_at = draft.now
        draft.remember(stop_asked_at=asked_at)
        draft.note("Suspending", "asked for a last checkpoint")
    if draft.now > asked_at + STOP_WITHIN_S:
        draft.note("NotSaved", f"no checkpoint within {STOP_WITHIN_S:.0f} s; ending the pods", warning=True)
        return False
    if orchestrator.ip:
        draft.do(AskToStop(orchestrator_address(orchestrator.ip), draft.memory.attempt))
    draft.wake(draft.now + ASK_AGAIN_S)
    draft.say(draft.memory.phase, "Suspending", "saving a last checkpoint before the pods end")
    return True
