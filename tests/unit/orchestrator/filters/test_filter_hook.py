from typing import Any

import pytest

from echorl_core.config import HookConfig
from echorl_orchestrator.failures import BadInputError
from echorl_orchestrator.filters.filter_hook import Answer, FilterEpisode, answer, inputs_of, own_matches
from echorl_orchestrator.filters.rules import Verdict
from echorl_orchestrator.rollout.groups import ReadyEpisode
from echorl_orchestrator.tasks.task_deck import Ticket
from echorl_testing.orchestrator.scripted_player import outcome


def ready(name: str, reward: float, advantage: float) -> ReadyEpisode:
    ticket = Ticket("maze", 0, 0, 0)
    return ReadyEpisode(outcome(name, reward=reward), "g", ticket, advantage, Verdict(), version_low=0, partial=False)


INPUTS = inputs_of([ready("e0", 1.0, 0.375), ready("e2", 0.25, -0.375)], "maze")


def test_what_the_function_sees() -> None:
    first, second = INPUTS
    assert (first.episode, first.environment, first.task_key, first.reward) == ("e0", "maze", 1, 1.0)
    assert (first.advantage, second.advantage, second.sampled_tokens) == (0.375, -0.375, 2)


def test_its_answer_and_its_arguments() -> None:
    def poor(episode: FilterEpisode, *, below: float) -> bool:
        return episode.reward < below

    assert answer(poor, {"below": 0.5}, INPUTS) == Answer([False, True])


def raises(episode: FilterEpisode) -> bool:
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (raises, r"raised KeyError: 'lost' \(.*test_filter_hook.py:\d+\); episode e0"),
        (lambda episode: 1, "returned int, accepted is True or False; episode e0"),
        (lambda episode: None, "returned NoneType, accepted is True or False; episode e0"),
        (lambda episode: episode.episode == "e0" or "no", "returned str, accepted is True or False; episode e2"),
        (lambda: True, "raised TypeError"),
    ],
)
def test_whatever_is_wrong_names_field_function_and_episode(function: Any, problem: str) -> None:
    found = answer(function, {}, INPUTS)
    with pytest.raises(BadInputError, match=rf"^spec.algorithm.filters\[2\].import 'mine:poor': {problem}"):
        own_matches({"problem": found.problem}, 2, HookConfig(import_path="mine:poor"))
