"""A user's own advantages: ``fn(inputs: AdvantageInputs, **kwargs) -> list[float]``, called once for each group.

It runs in an environment's worker, never on the orchestrator's event loop.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from echorl_core import hooks
from echorl_core.config import AdvantageConfig
from echorl_orchestrator.episode_outcome import LARGEST, EpisodeOutcome
from echorl_orchestrator.failures import BadInputError

FIELD = "spec.algorithm.advantage.import"


@dataclass(frozen=True)
class GroupEpisode:
    """One surviving episode of a group."""

    episode: str
    reward: float
    """Finite; of the group's scoring, if the environment scores groups."""
    turns: int
    sampled_tokens: int
    """That engines returned."""
    environment_tokens: int
    """That the environment wrote."""
    truncated: bool
    stop: str
    """Why it ended, as in records."""
    metrics: dict[str, float]
    info: dict[str, Any]
    messages: list[dict[str, Any]]
    """The episode as text."""


@dataclass(frozen=True)
class AdvantageInputs:
    """The episodes of one group that survived, in the order of their start."""

    environment: str
    task_key: int | str
    group_size: int
    """Episodes that were started; more than there are here where some failed."""
    episodes: list[GroupEpisode]


def inputs_of(
    outcomes: Sequence[EpisodeOutcome], rewards: Sequence[float], *, environment: str, group_size: int
) -> AdvantageInputs:
    """What the function gets of a group's survivors; there is at least one."""
    return AdvantageInputs(
        environment=environment,
        task_key=outcomes[0].task_key,
        group_size=group_size,
        episodes=[
            GroupEpisode(
                episode=outcome.episode,
                reward=reward,
                turns=outcome.num_turns,
                sampled_tokens=outcome.sampled_tokens,
                environment_tokens=outcome.environment_tokens,
                truncated=outcome.truncated,
                stop=str(outcome.stop),
                metrics=outcome.metrics,
                info=outcome.info,
                messages=outcome.messages,
            )
            for outcome, reward in zip(outcomes, rewards, strict=True)
        ],
    )


class Answer(msgspec.Struct, frozen=True):
    """Advantages, or why there are none."""

    advantages: list[float] = []
    problem: str | None = None


def answer(function: Callable[..., Any], kwargs: Mapping[str, Any], inputs: AdvantageInputs) -> Answer:
    """Call the function; whatever is wrong with it or with what it returns is the answer's problem."""
    try:
        values = function(inputs, **kwargs)
    except Exception as error:
        return Answer(problem=f"raised {hooks.told(error)}")
    count = len(inputs.episodes)
    accepted = f"accepted is a list of {count} finite numbers, one for each surviving episode"
    if not isinstance(values, list):
        return Answer(problem=f"returned {type(values).__name__}, {accepted}")
    if len(values) != count:
        return Answer(problem=f"returned {len(values)} values, {accepted}")
    for index, value in enumerate(values):
        if type(value) not in {int, float}:
            return Answer(problem=f"returned a {type(value).__name__} at {index}, {accepted}")
        # As a float32 the trainer would see an infinity, and could not say whose it was.
        if not abs(value) <= LARGEST:
            return Answer(problem=f"returned {str(value)[:24]} at {index}, {accepted} that a float32 holds")
    return Answer([float(value) for value in values])


def given(reply: Any, inputs: AdvantageInputs, config: AdvantageConfig) -> list[float]:
    """The advantages of an ``Answer`` that came from a worker.

    Raises:
        BadInputError: there are none; names the function and the group.
    """
    told = msgspec.convert(reply, Answer)
    if told.problem is None:
        return told.advantages
    name = config.hook.import_path if config.hook else None
    raise BadInputError(f"{FIELD} {name!r}: {told.problem}; group of episode {inputs.episodes[0].episode}")
