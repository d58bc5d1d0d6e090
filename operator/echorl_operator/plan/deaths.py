"""Tells what the ends of pods mean."""

from echorl_core import termination_message
from echorl_core.names import ExitCode, Role
from echorl_core.restarts import Death
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ContainerPhase, ContainerRecord, PodRecord

ROLES = {
    PodRole.TRAINER: Role.TRAINER,
    PodRole.INFERENCE: Role.INFERENCE,
    PodRole.ORCHESTRATOR: Role.ORCHESTRATOR,
    # It works for the gang; no decision about restarts is made from its end.
    PodRole.PREPARE: Role.TRAINER,
}
_NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of a container whose process never began; the message is the container runtime's."""
_TOLD_BY_SIGNAL = frozenset({137, 143})
"""Codes that a process has which was told to end and did not say so itself."""


def main_container(pod: PodRecord) -> ContainerRecord | None:
    """The container that is named like the pod's role."""
    return next((container for container in pod.containers if container.name == pod.role), None)


def exit_code(pod: PodRecord) -> int | None:
    """Exit code of the role's process; None if it has not ended by itself, or nobody knows."""
    main = main_container(pod)
    return main.exit_code if main is not None and main.phase is ContainerPhase.TERMINATED else None


def termination_message_of(pod: PodRecord) -> termination_message.TerminationMessage | None:
    """The termination message of the role's process, if it left one of our form."""
    main = main_container(pod)
    if main is None or main.phase is not ContainerPhase.TERMINATED:
        return None
    return termination_message.read(main.message)


def death_of(pod: PodRecord) -> Death:
    """Why a pod's work ended too early: its process's code and message, or what Kubernetes did to it."""
    role = ROLES[pod.role or PodRole.TRAINER]
    code = exit_code(pod)
    message = termination_message_of(pod)
    main = main_container(pod)
    if main is not None and main.reason == "OOMKilled":
        # No choice of anybody's: a rule on 137 speaks of it too.
        return Death(role, pod.meta.name, -9, message="out of memory (the container's limit or the node's)")
    if pod.disrupted or (code is None and pod.reason):
        why = pod.disrupted or f"{pod.reason}: {pod.message}"
        return Death(role, pod.meta.name, int(ExitCode.CRASH), why=why, notice=bool(pod.disrupted))
    if code is None or (pod.meta.deleted_at is not None and code in _TOLD_BY_SIGNAL):
        return Death(role, pod.meta.name, int(ExitCode.CRASH), why="its pod was deleted", notice=True)
    if main is not None and main.reason in _NOT_STARTED:
        return Death(role, pod.meta.name, code, message=f"{main.reason}: {main.message}")
    if code > 128:
        return Death(role, pod.meta.name, 128 - code, message=None if message is None else message.message or None)
    said = None if message is None else message.message or None
    return Death(role, pod.meta.name, code, message=said, notice=code == ExitCode.NOTICE)
