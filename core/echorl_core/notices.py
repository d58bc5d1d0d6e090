"""A notice: SIGTERM with seconds left, as a pod gets that is drained, preempted, evicted or deleted.

Every role answers it by what it is: an engine takes no more requests and hands over those that it cannot end, a rank
has its gang save at the next step's end if that comes in time, the orchestrator seals what is ready. Then it ends with
``ExitCode.NOTICE``, which is no fault.
"""

from collections.abc import Mapping

from echorl_core.names import ENV_GRACE

ENDS_S = 5.0
"""Seconds of a grace period that are left for the end itself: last words, a pod's last ranks."""


def time_for_work_s(environ: Mapping[str, str]) -> float | None:
    """Seconds that a process may work on after SIGTERM; None: it was told of no grace period, and ends at once.

    Raises:
        ValueError: the variable is there and no whole number of seconds.
    """
    found = environ.get(ENV_GRACE)
    if found is None:
        return None
    if not found.isdigit():
        raise ValueError(f"environment variable {ENV_GRACE}: found {found!r}, accepted are whole seconds from 0")
    return max(0.0, int(found) - ENDS_S)
