"""How runs stop: suspended, succeeded, failed; and what happens after that."""

from echorl_core.names import Phase
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_operator import names
from echorl_operator.children.assembly import inference_deployment, trainer_set
from echorl_operator.children.cluster_placement import orchestrator_address
from echorl_operator.children.rendering import Rendering
from echorl_operator.names import PodRole
from echorl_operator.observed.memory import ENDED
from echorl_operator.observed.records import Kind, PodRecord
from echorl_operator.plan import environments, lost_nodes
from echorl_operator.plan.actions import AskToStop, DeleteRun
from echorl_operator.plan.builder import PlanBuilder
from echorl_operator.plan.outcome import Outcome

STOP_WITHIN_S = 900.0
"""How long a run may take to finish its step and save before it is ended without that."""
ASK_AGAIN_S = 10.0
LAST_WORDS_S = 180.0
"""How long an orchestrator that ends by itself is waited for: its ranks hear of the end within 60 s, and its monitors
write what is left within 20 s."""


def fail(builder: PlanBuilder, reason: str, message: str) -> None:
    """The run ends in Failed; its pods go from the next pass on."""
    builder.fenced(phase=Phase.FAILED, ended_at=builder.now, failure=reason)
    builder.say(Phase.FAILED, reason, message)
    builder.note(reason, message, warning=True)


def succeed(builder: PlanBuilder, message: str) -> None:
    """The run ends in Succeeded; its pods go from the next pass on."""
    builder.fenced(phase=Phase.SUCCEEDED, ended_at=builder.now, failure="")
    builder.say(Phase.SUCCEEDED, "Finished", message)
    builder.note("Succeeded", message)


def scale_to_zero(builder: PlanBuilder, rendering: Rendering | None) -> None:
    """Let GPUs go: no trainer pods, no engines; and no servers of environments."""
    name = builder.observed.run.key.name
    environments.end_servers(builder)
    trainer = builder.child(Kind.STATEFUL_SET, names.trainer(name))
    engines = builder.child(Kind.DEPLOYMENT, names.inference(name))
    if rendering is None:
        # Nothing says any more how they look; without pods they are of no use.
        for child in (trainer, engines):
            if child is not None:
                builder.delete_child(child, "the run has ended")
        return
    if trainer is not None:
        builder.ensure_applied(trainer_set(rendering, builder.memory.attempt, 0), Kind.STATEFUL_SET, guarded=True)
    if engines is not None:
        builder.ensure_applied(inference_deployment(rendering, 0), Kind.DEPLOYMENT)


def after_the_end(builder: PlanBuilder, rendering: Rendering | None, spec: EchoRLRunSpec | None) -> None:
    """A run that succeeded or failed: free what it held, and delete it when its time to live is over."""
    assert builder.memory.phase in ENDED  # noqa: S101 - asked for these alone
    status = builder.observed.run.status
    builder.say(builder.memory.phase, builder.memory.failure or "Finished", str(status.get("message", "")))
    scale_to_zero(builder, rendering)
    # A pod that has ended by itself stays, for its log; so one that is about to is left alone.
    living = [pod for role in (PodRole.ORCHESTRATOR, PodRole.PREPARE) for pod in builder.pods(role) if not pod.ended]
    builder.delete_pods((pod for pod in living if not _ends_by_itself(builder, pod)), "the run has ended")
    hung = lost_nodes.hung(builder, (pod for pod in builder.observed.pods if pod.role is not None))
    if hung:
        lost_nodes.handle_hung_pods(builder, hung)
    ttl = None if spec is None else spec.ttl_seconds_after_finished
    if ttl is not None and builder.memory.ended_at is not None:
        if builder.now >= builder.memory.ended_at + ttl:
            builder.do(DeleteRun(builder.observed.run.uid))
        else:
            builder.wake(builder.memory.ended_at + ttl)


def _ends_by_itself(builder: PlanBuilder, pod: PodRecord) -> bool:
    """Whether the pod is the orchestrator that the run's end comes from, and still has time to end by itself."""
    memory, state = builder.memory, builder.observed.role_state
    if pod.role is not PodRole.ORCHESTRATOR or pod.attempt != memory.attempt or memory.ended_at is None:
        return False
    told = state is not None and state.attempt == memory.attempt and state.failure_code is not None
    until = memory.ended_at + LAST_WORDS_S
    if builder.now >= until or not (told or memory.phase is Phase.SUCCEEDED):
        return False
    builder.wake(until)
    return True


def suspend(builder: PlanBuilder, rendering: Rendering | None) -> None:
    """No pods, at the last step that could be committed: ask, wait, then end them."""
    builder.remember(active_since=None)
    if builder.memory.admitted() and ensure_saved(builder) is Outcome.PENDING:
        builder.say(builder.memory.phase, "Suspending", "saving a last checkpoint before the pods end")
        return
    scale_to_zero(builder, rendering)
    pods = [pod for pod in builder.observed.pods if pod.role is not None]
    bare = [pod for pod in pods if pod.role in (PodRole.ORCHESTRATOR, PodRole.PREPARE)]
    builder.delete_pods(bare, "the run is suspended")
    if hung := lost_nodes.hung(builder, pods):
        builder.say(builder.memory.phase, "NodeLost", lost_nodes.handle_hung_pods(builder, hung))
    elif pods:
        builder.say(builder.memory.phase, "Suspending", f"waiting for {len(pods)} pods to end")
    else:
        builder.remember(admission=None, prepared=0, stop_asked_at=None, not_before=None)
        builder.say(Phase.SUSPENDED, "Suspended", "suspended by spec.suspend; false goes on from the last checkpoint")


def ensure_saved(builder: PlanBuilder) -> Outcome:
    """Ask the orchestrator for a last checkpoint and its end, as long as there is one that may still save it."""
    orchestrator = builder.orchestrator()
    if orchestrator is None:
        return Outcome.DONE
    asked_at = builder.memory.stop_asked_at
    if asked_at is None:
        asked_at = builder.now
        builder.remember(stop_asked_at=asked_at)
        size = builder.memory.gang_size
        builder.note("Growing" if size is not None and size.grows else "Suspending", "asked for a last checkpoint")
    if builder.now > asked_at + STOP_WITHIN_S:
        builder.note("NotSaved", f"no checkpoint within {STOP_WITHIN_S:.0f} s; ending the pods", warning=True)
        return Outcome.DONE
    if orchestrator.ip:
        builder.do(AskToStop(orchestrator_address(orchestrator.ip), builder.memory.attempt))
    builder.wake(builder.now + ASK_AGAIN_S)
    return Outcome.PENDING
