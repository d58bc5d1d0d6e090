"""An orchestrator's answer to ``GET /state`` as the operator's record."""

from echorl_core.wire.run_state import RunState
from echorl_operator.observed.roles import Checkpoint, EngineState, RoleState


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
        engines=tuple(EngineState(one.name, one.state, one.version, one.error or "") for one in answer.engines),
        failure_code=None if failure is None else failure.exit_code,
        failure_message="" if failure is None else failure.message,
        last_step_at=moved_at,
        seen_at=now,
        live_generation=answer.live_generation or 0,
        steps_without_rl=answer.steps_without_rl,
    )
