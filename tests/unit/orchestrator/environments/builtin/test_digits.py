from typing import Any

import pytest
from pydantic import ValidationError

from echorl_orchestrator.environments.builtin.digits import DigitsEnv, DigitsTasks, build
from echorl_orchestrator.environments.builtin.parts.digit_questions import DigitsArgs
from echorl_orchestrator.types import Action


def judged(text: str, **args: Any) -> tuple[float | None, bool]:
    env = DigitsEnv(DigitsArgs(**args))
    env.reset({"key": "k", "prompt": "sum 9 9", "answer": "8"}, seed=0, episode_id="e")
    step = env.step(Action(text))
    return step.reward, step.terminated


@pytest.mark.parametrize(
    ("text", "args", "reward"),
    [
        ("8", {}, 1.0),
        ("it is 8, not 9", {}, 1.0),
        ("9 or 8", {}, 0.0),
        ("9 or 8", {"partial": 0.25}, 0.25),
        ("none", {"partial": 0.25}, 0.0),
        (" 8 ", {"strict": True}, 1.0),
        ("88", {"strict": True}, 0.0),
        ("٨", {"partial": 0.5}, 0.0),
    ],
)
def test_the_first_digit_is_the_answer(text: str, args: dict[str, Any], reward: float) -> None:
    assert judged(text, **args) == (reward, True)


def test_answers_are_right() -> None:
    expected = {
        "first": lambda row: row[0],
        "last": lambda row: row[-1],
        "count": len,
        "sum": lambda row: sum(row) % 10,
        "max": max,
    }
    tasks = DigitsTasks(DigitsArgs(questions=["first", "last", "count", "sum", "max"], digits=4))
    seen = set()
    for index in range(len(tasks)):
        question, *row = tasks[index]["prompt"].split()
        seen.add(question)
        assert tasks[index]["answer"] == str(expected[question](list(map(int, row))))
    assert seen == set(expected)
    assert tasks[7] == tasks[7]


def test_splits_share_no_question() -> None:
    keys = [
        {task["key"] for task in map(DigitsTasks(DigitsArgs(split=split)).__getitem__, range(256))}
        for split in ("train", "test")
    ]
    assert keys[0].isdisjoint(keys[1])


def test_arguments_are_checked() -> None:
    with pytest.raises(ValidationError, match="questions"):
        build(questions=["product"])
    with pytest.raises(IndexError):
        build().tasks[256]
