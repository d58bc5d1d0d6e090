"""The part of an update that exchanges weights: pause with a lease, apply, verify, resume; in place, apply alone."""

import asyncio
import time

import structlog

from echorl_core.faults import fault_point
from echorl_core.wire.engine import Applied
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_orchestrator.engines.admin import AdminClient, AdminError
from echorl_orchestrator.engines.engine import Engine

log = structlog.get_logger()

RESUME_TRIES = 2


class UpdateError(Exception):
    """An update failed."""

    def __init__(self, message: str, *, tainted: bool = False) -> None:
        super().__init__(message)
        self.tainted = tainted
        """The engine may hold other weights than before, or may be stopped: it must not serve."""


async def swap(
    engine: Engine, admin: AdminClient, policy: PolicyAnnouncement, lease_s: float, deadline_s: float
) -> dict[str, float]:
    """Exchange the weights for what is staged. A resume is sent whatever happens, also when this task is cancelled.

    Returns:
        ``pause_s`` (pause request sent to resume answered), ``apply_s``, ``running_at_pause`` (requests of this pool).

    Raises:
        UpdateError: a step failed; tainted unless the engine certainly holds its old weights and runs.
    """
    running = engine.in_flight
    paused_at = time.monotonic()
    failure: UpdateError | None = None
    apply_s = 0.0
    resume_error: str | None = None
    try:
        await admin.pause(lease_s)
        fault_point("orchestrator.paused")
        applying_at = time.monotonic()
        verify(policy, await _apply(admin, policy, lease_s, deadline_s))
        apply_s = time.monotonic() - applying_at
        fault_point("orchestrator.before_resume")
    except UpdateError as error:
        failure = error
    except AdminError as error:
        failure = UpdateError(str(error))
    finally:
        resume_error = await _resume(admin)
    if resume_error is not None:
        raise UpdateError(f"{failure or 'applied'}, and then no resume: {resume_error}", tainted=True)
    if failure is not None:
        raise failure
    return {"pause_s": time.monotonic() - paused_at, "apply_s": apply_s, "running_at_pause": running}


async def swap_in_place(
    engine: Engine, admin: AdminClient, policy: PolicyAnnouncement, deadline_s: float
) -> dict[str, float]:
    """Exchange the weights for what is staged between two steps of the engine, which goes on.

    Returns:
        As ``swap``, but ``pause_s`` is how long the slowest worker took.

    Raises:
        UpdateError: it failed; tainted unless the engine certainly holds its old weights.
    """
    running, applying_at = engine.in_flight, time.monotonic()
    workers = _workers_of(await _outcome(admin, policy, deadline_s))
    verify(policy, workers)
    stood = max(worker.seconds for worker in workers)
    return {"pause_s": stood, "apply_s": time.monotonic() - applying_at, "running_at_pause": running}


def verify(policy: PolicyAnnouncement, workers: list[Applied]) -> None:
    """Raise a tainted UpdateError unless every worker says that it holds exactly ``policy``."""
    if workers and all(worker.policy == policy.policy for worker in workers):
        return
    held = ", ".join(str(worker.policy) for worker in workers) or "nothing"
    raise UpdateError(f"apply: workers hold {held}, accepted is {policy.policy} on each", tainted=True)


async def _apply(admin: AdminClient, policy: PolicyAnnouncement, lease_s: float, deadline_s: float) -> list[Applied]:
    """Apply, with the lease renewed for as long as it takes."""
    over = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_renew(admin, lease_s, over))
        call = tasks.create_task(_outcome(admin, policy, deadline_s))
        await asyncio.wait({call}, timeout=0.01)
        fault_point("orchestrator.mid_apply")
        outcome = await call
        # The last renewal ends before the resume is sent: a pause that overtakes it would stop the engine again.
        over.set()
    return _workers_of(outcome)


def _workers_of(outcome: list[Applied] | AdminError) -> list[Applied]:
    if isinstance(outcome, AdminError):
        # 409: refused before anything was touched.
        raise UpdateError(str(outcome), tainted=outcome.status != 409) from outcome
    return outcome


async def _outcome(admin: AdminClient, policy: PolicyAnnouncement, deadline_s: float) -> list[Applied] | AdminError:
    try:
        return await admin.apply(policy, deadline_s)
    except AdminError as error:
        return error


async def _renew(admin: AdminClient, lease_s: float, over: asyncio.Event) -> None:
    while not over.is_set():
        try:
            async with asyncio.timeout(lease_s / 3):
                await over.wait()
        except TimeoutError:
            await _renew_once(admin, lease_s)


async def _renew_once(admin: AdminClient, lease_s: float) -> None:
    try:
        await admin.pause(lease_s)
    except AdminError as error:
        log.warning("pause lease not renewed", error=str(error))


async def _resume(admin: AdminClient) -> str | None:
    """Send a resume; None, or why the engine could not be reached."""
    reason = None
    for _ in range(RESUME_TRIES):
        try:
            await admin.resume()
        except AdminError as error:
            reason = str(error)
        else:
            return None
    return reason
