"""An orchestrator's answer to ``GET /state`` as the operator's record."""

import msgspec

from echorl_core.wire.run_state import RunState, SandboxesState, decode_run_state
from echorl_operator.observed.measurements import measurement, with_newest
from echorl_operator.observed.roles import Checkpoint, EngineState, RoleState

_MOST = 2**53
"""Status keeps numbers of an answer, and the API server takes none of 64 bits and more."""


def read_answer(body: bytes) -> RunState:
    """Read an answer.

    Raises:
        msgspec.MsgspecError: it is none, or has a number that nothing counts to.
    """
    answer = decode_run_state(body)
    policy, saved = answer.policy, answer.checkpoint
    served = () if policy.served is None else (policy.served.min, policy.served.max)
    sandboxes = answer.sandboxes or SandboxesState()
    waiting = (waits.count for waits in sandboxes.waiting)
    restarts = answer.restarts_in_place
    counted = (*sandboxes.lost.values(), *waiting, restarts.count, restarts.replacements)
    for number in (*counted, answer.step, policy.trained, policy.staleness_max, *served, saved.step, saved.size_bytes):
        if number is not None and not 0 <= number <= _MOST:
            raise msgspec.ValidationError(f"found the number {str(number)[:40]}, accepted are 0 to {_MOST}")
    return answer


def role_state(answer: RunState, *, before: RoleState | None, now: float) -> RoleState:
    """The record of an answer.

    Args:
        answer: The newest one.
        before: Of the same attempt; None: this is the first.
        now: Seconds since the epoch.
    """
    policy, saved, failure = answer.policy, answer.checkpoint, answer.failure
    moved_at = now - max(0.0, answer.unmoved_s or 0.0)
    if before is not None and (before.step, before.phase) == (answer.step, answer.phase):
        # The orchestrator says it anew each time, a little differently.
        moved_at = before.last_step_at
    checkpoint = None
    if saved.step is not None:
        checkpoint = Checkpoint(saved.step, saved.committed_at or "", saved.size_bytes or 0)
    return RoleState(
        attempt=answer.attempt,
        phase=answer.phase,
        step=answer.step,
        waiting_for=answer.waiting_for or "",
        reward=answer.reward,
        trained=policy.trained,
        served_min=None if policy.served is None else policy.served.min,
        served_max=None if policy.served is None else policy.served.max,
        staleness_max=None if policy.staleness_max is None else int(policy.staleness_max),
        checkpoint=checkpoint,
        abandoned=saved.abandoned or "",
        abandoned_step=saved.abandoned_step,
        volume_full=answer.volume_full or "",
        engines=tuple(EngineState(view.name, view.state, view.version, view.error or "") for view in answer.engines),
        failure_code=None if failure is None else failure.exit_code,
        failure_message="" if failure is None else failure.message,
        last_step_at=moved_at,
        seen_at=now,
        live_generation=answer.live_generation or 0,
        restarts_in_place=max(0, answer.restarts_in_place.count - answer.restarts_in_place.replacements),
        replacements=answer.restarts_in_place.replacements,
        restart_reason=answer.restarts_in_place.reason,
        steps_without_rl=answer.steps_without_rl,
        infrastructure_losses=None if answer.infrastructure_losses is None else tuple(answer.infrastructure_losses),
        sandboxes=answer.sandboxes,
        goodput=answer.goodput,
        measured=with_newest(() if before is None else before.measured, measurement(answer)),
    )
