"""Is the run directory still there, and has this run worked in it before."""

from echorl_core.names import ExitCode
from echorl_core.rundir import RunDirectory
from echorl_orchestrator.failures import RunFailure


def check_there(run: RunDirectory) -> None:
    """The run directory is there, with the file that says whose it is. Blocking.

    Raises:
        RunFailure: CRASH, it was deleted, or its volume is not mounted any more.
    """
    try:
        run.identity_file.stat()
    except FileNotFoundError:
        raise RunFailure(
            ExitCode.CRASH,
            f"the run directory is gone: {run.identity_file} is missing; it was deleted while the run used it, or its "
            "volume is not mounted. What remains cannot be gone on with: restore it, or start a new run",
        ) from None


def worked_before(run: RunDirectory, attempt: int) -> bool:
    """Whether an orchestrator of this run has worked before this process. Blocking."""
    return attempt > 1 or run.records(attempt).exists()
