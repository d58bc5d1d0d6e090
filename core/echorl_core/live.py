"""What of a run may be changed while it goes on: sent by the operator, taken over by the orchestrator.

A message is the whole of these settings, so the newest one alone counts, and sending it twice does no harm. What it
leaves out is as the orchestrator's config says.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from echorl_core.config import EnvironmentConfig, OrchestratorConfig

Positive = Annotated[int, Meta(ge=1)]


class LiveSampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens of one environment are drawn, from the next group on."""

    temperature: Annotated[float, Meta(ge=0, le=100)]
    """Above 0 in train environments."""
    max_completion_tokens: Positive
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """1 in train environments."""
    top_k: Positive | None = None
    """None in train environments."""


_LIVE = set(LiveSampling.__struct_fields__)


class LiveCheckpoints(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When checkpoints are saved, and which are kept."""

    interval: Positive
    keep_last: Positive
    keep_every: Positive | None = None
    """A multiple of ``interval``."""


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of ``POST /control/live``."""

    generation: Positive
    """Generation of the run's spec; a higher one replaces a lower one."""
    max_steps: Annotated[int, Meta(ge=0)] | None = None
    checkpoint: LiveCheckpoints | None = None
    eval_intervals: dict[str, Positive] = {}
    """Steps between evals, by name of the eval environment."""
    sampling: dict[str, LiveSampling] = {}
    """Sampling by name of the environment, train or eval."""


class LiveReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to ``POST /control/live``: the settings will hold, whatever restarts."""

    generation: int
    in_effect: bool
    """False: from the next batch on."""


def settings_of(config: OrchestratorConfig, generation: int) -> LiveSettings:
    """The settings that ``config`` holds: what to send to a run that was started with another one."""
    checkpoint = config.checkpoint
    return LiveSettings(
        generation=generation,
        max_steps=config.max_steps,
        checkpoint=LiveCheckpoints(
            interval=checkpoint.interval, keep_last=checkpoint.keep_last, keep_every=checkpoint.keep_every
        ),
        eval_intervals={evaluation.environment.name: evaluation.interval for evaluation in config.evals},
        sampling={env.name: LiveSampling(**env.sampling.model_dump(include=_LIVE)) for env in _environments(config)},
    )


def applied(config: OrchestratorConfig, settings: LiveSettings) -> OrchestratorConfig:
    """``config`` with the settings in it. What differs from another config besides cannot be changed live."""
    update: dict[str, object] = {
        "train": [_sampled(environment, settings) for environment in config.train],
        "evals": [
            evaluation.model_copy(
                update={
                    "interval": settings.eval_intervals.get(evaluation.environment.name, evaluation.interval),
                    "environment": _sampled(evaluation.environment, settings),
                }
            )
            for evaluation in config.evals
        ],
    }
    if settings.max_steps is not None:
        update["max_steps"] = settings.max_steps
    if settings.checkpoint is not None:
        update["checkpoint"] = config.checkpoint.model_copy(update=msgspec.structs.asdict(settings.checkpoint))
    return config.model_copy(update=update)


def problems(config: OrchestratorConfig, settings: LiveSettings) -> list[str]:
    """Why a run that was started with ``config`` cannot take the settings over; empty if it can."""
    train = {environment.name for environment in config.train}
    evals = {evaluation.environment.name for evaluation in config.evals}
    reasons = [
        f"eval_intervals.{name}: no such eval environment, accepted are {_listed(evals)}"
        for name in sorted(set(settings.eval_intervals) - evals)
    ]
    reasons += [
        f"sampling.{name}: no such environment, accepted are {_listed(train | evals)}"
        for name in sorted(set(settings.sampling) - train - evals)
    ]
    for name in sorted(train & set(settings.sampling)):
        reasons += _untrainable(name, settings.sampling[name])
    checkpoint = settings.checkpoint
    if checkpoint is not None and checkpoint.keep_every is not None and checkpoint.keep_every % checkpoint.interval:
        accepted = f"a multiple of interval ({checkpoint.interval})"
        reasons.append(f"checkpoint.keep_every: found {checkpoint.keep_every}, accepted is {accepted}")
    return reasons


def _untrainable(name: str, sampling: LiveSampling) -> Iterator[str]:
    """For training only the temperature may differ from plain sampling."""
    path = f"sampling.{name}"
    if sampling.temperature == 0:
        yield f"{path}.temperature: found 0, accepted is a number above 0 in a train environment"
    if sampling.top_p != 1:
        yield f"{path}.top_p: found {sampling.top_p}, accepted is 1 in a train environment"
    if sampling.top_k is not None:
        yield f"{path}.top_k: found {sampling.top_k}, accepted is null in a train environment"


def _environments(config: OrchestratorConfig) -> list[EnvironmentConfig]:
    return [*config.train, *(evaluation.environment for evaluation in config.evals)]


def _sampled(environment: EnvironmentConfig, settings: LiveSettings) -> EnvironmentConfig:
    chosen = settings.sampling.get(environment.name)
    if chosen is None:
        return environment
    sampling = environment.sampling.model_copy(update=msgspec.structs.asdict(chosen))
    return environment.model_copy(update={"sampling": sampling})


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
