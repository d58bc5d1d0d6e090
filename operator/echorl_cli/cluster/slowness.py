"""What keeps a run from being faster, and which field of its manifest would move it: from its account of time. Pure.

The trainer's time is the run's clock. What it loses itself is told first; where it waits for batches, or loses nothing
much, the engines' time says why.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from echorl_core.wire.goodput import INFERENCE, TRAINER, TimeState

ENOUGH_S = 120.0
"""GPU-seconds that must have been decided before shares say anything."""
NOTICEABLE = 0.15
"""Share of a role's time from which on a loss is worth a change."""


@dataclass(frozen=True)
class Share:
    """Part of one role's decided time."""

    role: str
    state: str
    """Of ``TimeState``; several are joined by ``+``."""
    part: float
    """From 0 to 1."""
    whole_s: float
    """GPU-seconds of the role that are decided."""


@dataclass(frozen=True)
class Finding:
    """The answer of ``echorl why --slow``."""

    cause: str
    """One word for scripts: docs/goodput.md lists them."""
    sentence: str
    shares: tuple[Share, ...] = ()
    """What it rests on."""


@dataclass(frozen=True)
class _Loss:
    cause: str
    states: tuple[TimeState, ...]
    what: str
    advice: str


_STARTING = _Loss(
    "starting",
    (TimeState.STARTING,),
    "much of the time so far was the start",
    "a longer run makes that small, no field does, and until then the other shares say little",
)
_RESTARTS = _Loss(
    "restarts",
    (TimeState.REDONE, TimeState.RESTARTING, TimeState.LOST, TimeState.ENGINE_LOST),
    "restarts, and work that they lost, take the time",
    "a smaller spec.checkpoint.interval has less made again; better, mend what fails, which the run's timeline names",
)
_PUBLISHING = _Loss(
    "publishing",
    (TimeState.PUBLISHING,),
    "GPUs stand still while weights are published",
    "another spec.weightTransfer.mode (nccl goes from GPU to GPU), and spec.weightTransfer.delta: auto",
)
_SAVING = _Loss(
    "saving",
    (TimeState.SAVING,),
    "the trainer stands still for checkpoints",
    "a larger spec.checkpoint.interval, and spec.checkpoint.asyncSave: true",
)
_WAITING = _Loss(
    "engines",
    (TimeState.WAITING,),
    "the engines are the bottleneck, the trainer waits for batches",
    "more spec.inference.replicas, which spec.inference.autoscale finds by itself, or a higher "
    "spec.algorithm.oversampling where engines could take more requests",
)
_TRAINER_LOSSES = (_STARTING, _RESTARTS, _PUBLISHING, _SAVING, _WAITING)

_BOTH_IDLE = _Loss(
    "environments",
    (TimeState.WAITING,),
    "the engines have no requests meanwhile, so episodes are kept back or their environments are slow",
    "a higher spec.algorithm.maxStaleness (0 has both sides take turns) or spec.algorithm.oversampling, or more "
    "spec.environments.train[].maxConcurrent and workers",
)
_ENGINES_IDLE = _Loss(
    "trainer",
    (TimeState.WAITING,),
    "the trainer is the bottleneck, engines stand idle",
    "more spec.trainer.replicas, or a larger spec.trainer.seqLen for fewer micro-batches; fewer "
    "spec.inference.replicas cost no speed",
)
_ENGINE_LOSSES = (
    _Loss(
        "stale",
        (TimeState.STALE,),
        "what engines sample is thrown away as too old",
        "a higher spec.algorithm.maxStaleness, or a lower spec.algorithm.oversampling",
    ),
    _Loss(
        "filtered",
        (TimeState.FILTERED,),
        "what engines sample is filtered out, as are groups of equal rewards: tasks are too easy or too hard",
        "other tasks (spec.environments.train[].args), a larger spec.algorithm.groupSize, or other "
        "spec.algorithm.filters",
    ),
    _Loss(
        "failed",
        (TimeState.FAILED,),
        "what engines sample is lost with episodes that fail",
        "mend the environment, or more spec.environments.train[].episodeTimeout where they run out of time",
    ),
    _Loss(
        "evals",
        (TimeState.EVALUATING,),
        "evals take the engines' time",
        "a larger spec.environments.eval[].interval, or a smaller spec.environments.eval[].numExamples",
    ),
    _RESTARTS,
    _PUBLISHING,
    _STARTING,
)
_NOTHING = (
    "no loss stands out, GPUs do what they are for: only more of them make the run faster "
    "(spec.trainer.replicas and spec.inference.replicas together)"
)


@dataclass(frozen=True)
class _Time:
    """One role's decided time by state."""

    role: str
    states: Mapping[str, float]

    @property
    def whole(self) -> float:
        return sum(self.states.values())

    def share(self, *states: TimeState) -> Share:
        present = [state for state in states if self.states.get(state)] or states[:1]
        part = sum(self.states.get(state, 0.0) for state in present) / (self.whole or 1.0)
        return Share(self.role, "+".join(present), part, self.whole)

    def largest(self, losses: tuple[_Loss, ...]) -> _Loss | None:
        """The loss with the largest share, the first of equals; None if none is noticeable."""
        largest = max(losses, key=lambda loss: self.share(*loss.states).part)
        return largest if self.share(*largest.states).part >= NOTICEABLE else None


def slowness(account: Mapping[str, float]) -> Finding:
    """What the bottleneck is and what would move it.

    Args:
        account: GPU-seconds as ``ROLE/STATE``, as ``status.goodput`` has them; other keys are ignored.
    """
    trainer, engines = _time(TRAINER, account), _time(INFERENCE, account)
    trained = trainer.share(TimeState.USEFUL, TimeState.REDONE).part > 0
    if not trained or trainer.whole + engines.whole < ENOUGH_S:
        wanted = f"it takes a trained step and {ENOUGH_S:.0f} s of GPU time"
        return Finding("unknown", f"too little is measured yet to say what is slow: {wanted}")
    loss = trainer.largest(_TRAINER_LOSSES)
    useful = trainer.share(TimeState.USEFUL)
    if loss is not None and loss is not _WAITING:
        return Finding(loss.cause, f"{loss.what}: {loss.advice}", (trainer.share(*loss.states), useful))
    first = useful if loss is None else trainer.share(TimeState.WAITING)
    idle = _ENGINES_IDLE if loss is None else _BOTH_IDLE
    # Where nothing is sampled, as in mode sft, batches come from the environments alone.
    why = engines.largest((idle, *_ENGINE_LOSSES)) if engines.whole or loss is None else idle
    sampled = (engines.share(TimeState.USEFUL),) if engines.whole else ()
    if why is None:
        what = _NOTHING if loss is None else f"{loss.what}: {loss.advice}"
        return Finding("nothing" if loss is None else loss.cause, what, (first, *sampled))
    what = why.what if loss is None else f"the trainer waits for batches, and {why.what}"
    lost = (engines.share(*why.states),) if engines.whole else ()
    return Finding(why.cause, f"{what}: {why.advice}", (first, *lost, *sampled))


def _time(role: str, account: Mapping[str, float]) -> _Time:
    seconds = {state: account.get(f"{role}/{state}", 0.0) for state in TimeState if state is not TimeState.UNDECIDED}
    return _Time(role, {state: value for state, value in seconds.items() if math.isfinite(value) and value > 0})
