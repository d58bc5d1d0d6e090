"""Pods that somebody takes away: drained, preempted, evicted, deleted. It is told and counted, and is no fault.

A pod that is deleted runs on for its grace period. Its gang saves in that time, or drops its step if it cannot: so a
new attempt, which deletes the other pods and the orchestrator, waits until the pod has ended.
"""

from echorl_core.names import ExitCode
from echorl_manifest.models.status import MAX_SHORT
from echorl_operator.names import PodRole
from echorl_operator.observed.records import PodRecord
from echorl_operator.plan.builder import PlanBuilder
from echorl_operator.plan.deaths import exit_code
from echorl_operator.plan.gang import Gang
from echorl_operator.plan.outcome import Outcome

_AS_TOLD = frozenset({ExitCode.OK, ExitCode.NOTICE})


def handle_notices(builder: PlanBuilder, gang: Gang) -> Outcome:
    """Tell of pods that are being taken away. Pending: the gang has time to save."""
    note_notice_of_orchestrator(builder)
    ending = [pod for pod in gang.current if pod.meta.deleted_at is not None and not pod.ended]
    if not ending:
        return Outcome.DONE
    note_notice_of_gang(builder, words_of(ending[0]))
    until = max((pod.meta.deleted_at or 0.0 for pod in ending if pod.ready), default=0.0)
    # Without a rank that has crashed, and on a node that is lost, nothing can be saved.
    if builder.now >= until or any(exit_code(pod) not in _AS_TOLD for pod in gang.ended):
        return Outcome.DONE
    builder.wake(until)
    builder.say(builder.phase, "Notice", f"{words_of(ending[0])}; its gang saves, or drops the step under way")
    return Outcome.PENDING


def note_notice_of_orchestrator(builder: PlanBuilder) -> None:
    """Count and tell that the attempt's orchestrator is taken away."""
    for pod in builder.pods(PodRole.ORCHESTRATOR):
        ours = pod.attempt == builder.memory.attempt and pod.meta.uid != builder.memory.counted
        if ours and pod.meta.deleted_at is not None:
            # Another one is made when it is gone, whatever it ends with.
            note_notice(builder, words_of(pod))
            builder.remember(counted=pod.meta.uid)


def words_of(pod: PodRecord) -> str:
    """That a pod is taken away, and by what, in one clause."""
    return f"{pod.meta.name} was given notice: {pod.disrupted or 'its pod is deleted'}"


def note_notice_of_gang(builder: PlanBuilder, words: str) -> None:
    """Count and tell that the attempt's gang was given notice: once, for however many of its pods."""
    if builder.memory.noticed_attempt != builder.memory.attempt:
        note_notice(builder, words)
        builder.remember(noticed_attempt=builder.memory.attempt)


def note_notice(builder: PlanBuilder, words: str) -> None:
    """Count and tell a notice."""
    sentence = f"attempt {builder.memory.attempt}: {words}"[:MAX_SHORT]
    builder.fenced(notices=builder.memory.notices + 1, last_notice=sentence)
    builder.note("Notice", sentence)
