"""A user's own filter: ``fn(episode: FilterEpisode, **kwargs) -> bool``, True where the episode matches.

It runs in an environment's worker, never on the orchestrator's event loop: once for each survivor of a closed group.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from echorl_core import hooks
from echorl_core.config import HookConfig
from echorl_orchestrator.advantages import advantage_hook
from echorl_orchestrator.advantages.advantage_hook import GroupEpisode
from echorl_orchestrator.episode_outcome import EpisodeOutcome
from echorl_orchestrator.failures import BadInputError

ACCEPTED = "accepted is True or False"


def field(index: int) -> str:
    """The manifest's field that names the function of filter ``index``."""
    return f"spec.algorithm.filters[{index}].import"


@dataclass(frozen=True)
class FilterEpisode(GroupEpisode):
    """One surviving episode of a closed group, with its advantage."""

    environment: str
    task_key: int | str
    advantage: float


class Answer(msgspec.Struct, frozen=True):
    """Which of the episodes match, or why that is not known."""

    matched: list[bool] = []
    problem: str | None = None


class ScoredEpisode(Protocol):
    """A survivor of a closed group, as ``rollout.groups.ReadyEpisode`` holds it."""

    outcome: EpisodeOutcome
    advantage: float


def inputs_of(episodes: Sequence[ScoredEpisode], environment: str) -> list[FilterEpisode]:
    """What the function gets of a closed group's survivors."""
    outcomes = [episode.outcome for episode in episodes]
    rewards = [float(outcome.reward or 0.0) for outcome in outcomes]
    group = advantage_hook.inputs_of(outcomes, rewards, environment=environment, group_size=len(outcomes))
    return [
        FilterEpisode(**vars(given), environment=environment, task_key=group.task_key, advantage=episode.advantage)
        for given, episode in zip(group.episodes, episodes, strict=True)
    ]


def answer(function: Callable[..., Any], kwargs: Mapping[str, Any], episodes: Sequence[FilterEpisode]) -> Answer:
    """Ask the function about each episode; whatever is wrong with it or what it returns is the answer's problem."""
    matched = []
    for episode in episodes:
        try:
            is_match = function(episode, **kwargs)
        except Exception as error:
            return Answer(problem=f"raised {hooks.told(error)}; episode {episode.episode}")
        if type(is_match) is not bool:
            return Answer(problem=f"returned {type(is_match).__name__}, {ACCEPTED}; episode {episode.episode}")
        matched.append(is_match)
    return Answer(matched)


def own_matches(reply: Any, index: int, hook: HookConfig) -> list[bool]:
    """What an ``Answer`` that came from a worker says, one for each episode.

    Raises:
        BadInputError: it says nothing; names the function and the episode.
    """
    told = msgspec.convert(reply, Answer)
    if told.problem is None:
        return told.matched
    raise BadInputError(f"{field(index)} {hook.import_path!r}: {told.problem}")
