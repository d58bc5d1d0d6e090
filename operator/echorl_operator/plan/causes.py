"""Why a restart is due, as one of a small fixed set of causes for metrics; ``deaths.py`` has sentences for people."""

from echorl_core.names import ExitCode
from echorl_operator.accounting.restarts import Cause
from echorl_operator.observed.records import PodRecord
from echorl_operator.plan.deaths import exit_code, main_container
from echorl_operator.plan.gang import Gang


def cause_of(gang: Gang, orchestrator: PodRecord | None) -> Cause:
    """Find the cause for which an attempt cannot go on.

    Where several pods ended, the cause that stands first in ``Cause``: peers of a rank that is out of memory crash.

    Args:
        gang: the attempt's gang.
        orchestrator: the attempt's orchestrator pod, if it ended.
    """
    crashed = [pod for pod in gang.ended if exit_code(pod) != ExitCode.OK]
    ending = [pod for pod in gang.current if pod.meta.deleted_at is not None and not pod.ended]
    causes = {cause_of_pod(pod) for pod in (*crashed, *ending, *([orchestrator] if orchestrator else []))}
    if causes:
        return next(cause for cause in Cause if cause in causes)
    parted = gang.ended and not any(pod.gated for pod in gang.current)
    return Cause.FINISHED_EARLY if parted else Cause.POD_LOST


def cause_of_pod(pod: PodRecord) -> Cause:
    """Find the cause for which one pod ended, or is being deleted."""
    main, code = main_container(pod), exit_code(pod)
    if main is not None and main.reason == "OOMKilled":
        return Cause.OUT_OF_MEMORY
    if pod.reason == "Evicted":
        return Cause.EVICTED
    if pod.disrupted:
        return Cause.DISRUPTED
    if code is None:
        return Cause.POD_LOST
    if code == ExitCode.NOTICE:
        return Cause.NOTICE
    return Cause.SIGNALLED if code > 128 else Cause.CRASHED
