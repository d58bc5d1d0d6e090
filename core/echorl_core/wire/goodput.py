"""Where a run's GPUs spent their time, as its orchestrator tells it: part of ``GET /state`` and of what it keeps."""

from enum import StrEnum

import msgspec


class TimeState(StrEnum):
    """What a trainer rank's or an engine's GPU did at a moment. Every moment is in one state alone."""

    USEFUL = "useful"
    """A step was trained for the first time, or what became part of such a step was sampled."""
    EVALUATING = "evaluating"
    """Evals were sampled."""
    WAITING = "waiting"
    """The trainer had no batch, or an engine no request."""
    PUBLISHING = "publishing"
    """The trainer handed weights out, or an engine took them in."""
    SAVING = "saving"
    """The trainer stood still for a checkpoint."""
    STARTING = "starting"
    """Before an attempt's first step, or an engine's first service."""
    RESTARTING = "restarting"
    """The same after a fault, and while no orchestrator was there to tell."""
    REDONE = "redone"
    """A step that an earlier attempt had trained and lost was trained again, or sampled for again."""
    STALE = "stale"
    """Sampled, and too old when its batch was sealed."""
    FILTERED = "filtered"
    """Sampled, and left out by a filter, or nothing of it trains."""
    FAILED = "failed"
    """Sampled for an episode, a try of one, or a group that failed."""
    ENGINE_LOST = "engineLost"
    """Sampled on an engine that was lost, evicted or put away before it answered, or for a try that this ended."""
    UNUSED = "unused"
    """Sampled, and the run ended before a batch took it."""
    LOST = "lost"
    """Sampled, and forgotten when the orchestrator or the attempt ended."""
    UNDECIDED = "undecided"
    """The trainer's step under way; sampling whose episode is in flight, ready or sealed. It becomes another state."""


THROWN_AWAY = (
    TimeState.STALE,
    TimeState.FILTERED,
    TimeState.FAILED,
    TimeState.ENGINE_LOST,
    TimeState.UNUSED,
    TimeState.LOST,
)
"""States of sampling that was for nothing: the causes of ``untrained_tokens``."""

TRAINER, INFERENCE = "trainer", "inference"
"""Roles whose time is accounted for."""

Seconds = dict[str, dict[TimeState, float]]
"""GPU-seconds by role and state; states without any may be missing."""


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """What all attempts of a run did with their GPUs until ``measured_at``."""

    measured_at: str
    """ISO 8601 in UTC."""
    gpu_seconds: dict[str, dict[str, float]] = {}
    """GPU-seconds by role (trainer, inference) and by ``TimeState``. A process without a GPU counts as one."""
    useful_ratio: float | None = None
    """Useful over all that is decided; null before anything is."""
    untrained_tokens: dict[str, int] = {}
    """Tokens that were sampled and will never be trained, by cause: states of ``THROWN_AWAY``."""
    queued: float | None = None
    """Requests in an engine's queue, mean over engines and the time since the last measurement; null: unknown."""
    kv_usage: float | None = None
    """Share of the KV cache in use, mean over engines and that time."""


def useful_ratio(seconds: dict[str, dict[str, float]]) -> float | None:
    """Useful GPU-seconds over all that are decided, of all roles; None before any is."""
    decided = sum(s for states in seconds.values() for state, s in states.items() if state != TimeState.UNDECIDED)
    useful = sum(states.get(TimeState.USEFUL, 0.0) for states in seconds.values())
    return useful / decided if decided > 0 else None
