import math
from typing import Any

import pytest

from echorl_core.config import AdvantageConfig, HookConfig
from echorl_orchestrator.advantages.advantage_hook import AdvantageInputs, Answer, answer, given, inputs_of
from echorl_orchestrator.episode_outcome import StopReason
from echorl_orchestrator.failures import BadInputError
from echorl_testing.orchestrator.scripted_player import A, C, E, outcome, sample

OUTCOMES = [outcome("e0", reward=1.0), outcome("e2", reward=None, samples=[sample([C, A, E])])]
INPUTS = inputs_of(OUTCOMES, [1.0, 0.25], environment="maze", group_size=4)


def test_what_the_function_sees() -> None:
    assert (INPUTS.environment, INPUTS.task_key, INPUTS.group_size) == ("maze", 1, 4)
    first, second = INPUTS.episodes
    assert (first.episode, first.reward, first.turns, first.sampled_tokens, first.environment_tokens) == (
        "e0", 1.0, 1, 2, 2,
    )  # fmt: skip
    assert (second.episode, second.reward, second.environment_tokens) == ("e2", 0.25, 1)
    assert second.stop == StopReason.TERMINATED


def test_its_answer_and_its_arguments() -> None:
    def best(inputs: AdvantageInputs, *, scale: int) -> list[float]:
        return [scale * episode.reward for episode in inputs.episodes]

    assert answer(best, {"scale": 2}, INPUTS) == Answer([2.0, 0.5])


def raises(inputs: AdvantageInputs) -> list[float]:
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (raises, r"raised KeyError: 'lost' \(.*test_advantage_hook.py:\d+\)"),
        (lambda _: [1.0], "returned 1 values, accepted is a list of 2 finite numbers, one for each surviving episode"),
        (lambda _: (1.0, 2.0), "returned tuple, accepted is a list of 2"),
        (lambda _: None, "returned NoneType, accepted"),
        (lambda _: [1.0, "2"], "returned a str at 1, accepted"),
        (lambda _: [True, 1.0], "returned a bool at 0, accepted"),
        (lambda _: [1.0, None], "returned a NoneType at 1, accepted"),
        (lambda _: [1.0, math.nan], "returned nan at 1, accepted"),
        (lambda _: [math.inf, 1.0], "returned inf at 0, accepted"),
        (lambda _: [1.0, -1e39], r"returned -1e\+39 at 1, accepted"),
        (lambda _: [10**400, 1.0], "returned 10+ at 0, accepted"),
    ],
)
def test_whatever_is_wrong_names_function_value_and_what_is_accepted(function: Any, problem: str) -> None:
    config = AdvantageConfig(type="custom", hook=HookConfig(import_path="mine:best"))
    found = answer(function, {}, INPUTS)
    with pytest.raises(BadInputError, match=f"^spec.algorithm.advantage.import 'mine:best': {problem}") as caught:
        given({"problem": found.problem}, INPUTS, config)
    assert str(caught.value).endswith("group of episode e0")
