"""An orchestrator's answer to ``GET /state`` as a record. Keys that are not named here are ignored."""

import msgspec

from echorl_core.names import Phase
from echorl_operator.observed.roles import Checkpoint, EngineState, RoleState


class _Range(msgspec.Struct):
    min: int
    max: int


class _Policy(msgspec.Struct):
    trained: int | None = None
    served: _Range | None = None
    staleness_max: float | None = None


class _Checkpoint(msgspec.Struct):
    step: int | None = None
    size_bytes: int | None = None
    committed_at: str | None = None
    abandoned: str | None = None


class _Engine(msgspec.Struct):
    name: str
    state: str
    version: int | None = None
    error: str | None = None


class _Failure(msgspec.Struct):
    exit_code: int | None = None
    message: str = ""


class Answer(msgspec.Struct):
    """What is read of an answer."""

    uid: str
    attempt: int
    revision: int
    phase: Phase
    step: int | None = None
    waiting_for: str | None = None
    policy: _Policy = msgspec.field(default_factory=_Policy)
    checkpoint: _Checkpoint = msgspec.field(default_factory=_Checkpoint)
    reward: float | None = None
    engines: list[_Engine] = msgspec.field(default_factory=list)
    failure: _Failure | None = None
    live_generation: int | None = None
    unmoved_s: float | None = None


_ANSWER = msgspec.json.Decoder(Answer)


def decode(body: bytes) -> Answer:
    """Read an answer.

    Raises:
        msgspec.MsgspecError: it is not what docs/protocols.md says.
    """
    try:
        return _ANSWER.decode(body)
    except (UnicodeDecodeError, RecursionError) as error:
        # Text that is not UTF-8, and nesting without end, are told otherwise than all else that is wrong.
        raise msgspec.DecodeError(str(error)) from error


def role_state(answer: Answer, *, before: RoleState | None, now: float) -> RoleState:
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
    )
