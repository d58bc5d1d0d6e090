"""What is measured of a run about once a minute, as far as the number of its engines rests on it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from echorl_core.wire.goodput import INFERENCE, TRAINER, TimeState
from echorl_core.wire.run_state import RunState
from echorl_operator.observed.times import from_text

MOST = 64
"""Measurements that are kept of a run."""
SERVING = frozenset({"serving", "updating"})
"""States of an engine that takes part in the run."""
_AT_WORK = (TimeState.USEFUL, TimeState.REDONE, TimeState.PUBLISHING, TimeState.SAVING, TimeState.WAITING)
_NOT_YET = (TimeState.STARTING, TimeState.RESTARTING)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Sums since the run began, but for what says otherwise. GPU-seconds are ``wire.goodput``'s."""

    at: float
    """Seconds since the epoch."""
    step: int
    """The newest trained step."""
    engines: int
    """That serve at this moment."""
    trainer_s: float
    """GPU-seconds of the trainer that belong to finished steps: at work or waiting, neither starting nor restarting."""
    trainer_waiting_s: float
    """Of these: without a batch."""
    engines_s: float
    """GPU-seconds of engines that served."""
    engines_waiting_s: float
    """Of these: without a request."""
    queued: float | None = None
    """Requests in an engine's queue, mean over the last minute; None: unknown."""
    kv_usage: float | None = None
    """Share of the KV cache in use, the same."""


def measurement(answer: RunState) -> Measurement | None:
    """What an orchestrator's answer measures; None if it measures nothing, or no time can be read."""
    told = answer.goodput
    at = None if told is None else from_text(told.measured_at)
    if told is None or at is None:
        return None
    trainer, engines = (told.gpu_seconds.get(role, {}) for role in (TRAINER, INFERENCE))
    return Measurement(
        at=at,
        step=answer.step or 0,
        engines=sum(view.state in SERVING for view in answer.engines),
        trainer_s=_sum(trainer, _AT_WORK),
        trainer_waiting_s=_sum(trainer, (TimeState.WAITING,)),
        engines_s=_sum(engines, engines) - _sum(engines, _NOT_YET),
        engines_waiting_s=_sum(engines, (TimeState.WAITING,)),
        queued=told.queued,
        kv_usage=told.kv_usage,
    )


def with_newest(before: tuple[Measurement, ...], newest: Measurement | None) -> tuple[Measurement, ...]:
    """The measurements once there is another one, oldest first.

    Of those between which neither steps nor engines changed the first and the last are kept, so that a run with long
    steps has as many of them as one with short steps.
    """
    if newest is None or (before and newest.at <= before[-1].at):
        return before
    same = len(before) > 1 and all((old.step, old.engines) == (newest.step, newest.engines) for old in before[-2:])
    return (*before[: -1 if same else None], newest)[-MOST:]


def _sum(seconds: Mapping[str, float], states: Iterable[str]) -> float:
    return sum(seconds.get(state, 0.0) for state in states)
