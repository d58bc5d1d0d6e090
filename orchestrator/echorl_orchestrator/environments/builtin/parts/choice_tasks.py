"""A seeded multiple-choice set that ``builtin:choice``, ``builtin:debate`` and ``builtin:consultancy`` share.

A question about a row of digits, and answers of which one is right:

    max 3 8 5
    A) 8
    B) 5
"""

import random
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from echorl_orchestrator.environments.builtin.parts.digit_questions import DigitsArgs, Question
from echorl_orchestrator.environments.builtin.parts.digit_questions import make_task as make_digits
from echorl_orchestrator.environments.builtin.parts.drawn import DrawnTasks, Split

LETTERS = "ABCDEFGHIJ"


class ChoiceArgs(BaseModel):
    """Arguments that the three environments share: equal ones give the same questions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    split: Split = "train"
    num_tasks: int = Field(default=256, ge=1)
    seed: int = 0
    digits: int = Field(default=3, ge=1, le=9)
    """Digits a question shows."""
    questions: list[Question] = ["max"]
    """Kinds of questions, mixed evenly."""
    choices: int = Field(default=2, ge=2, le=10)
    """Answers of a question."""


def make_task(args: ChoiceArgs, rng: random.Random) -> dict[str, Any]:
    """One question of either split. ``answers`` are in the order of their letters; ``right`` is a letter."""
    task = make_digits(DigitsArgs(digits=args.digits, questions=args.questions), rng)
    wrong = rng.sample([str(digit) for digit in range(10) if str(digit) != task["answer"]], args.choices - 1)
    answers = [task["answer"], *wrong]
    rng.shuffle(answers)
    letters = LETTERS[: args.choices]
    return {
        "key": f"{task['prompt']} {' '.join(answers)}",
        "question": task["prompt"],
        "answers": answers,
        "right": letters[answers.index(task["answer"])],
    }


def shown(task: dict[str, Any]) -> str:
    """The question with its answers, as the model reads it."""
    lines = [f"{letter}) {answer}" for letter, answer in zip(LETTERS, task["answers"], strict=False)]
    return "\n".join([task["question"], *lines])


def first_letter(said: str, choices: int) -> str | None:
    """The first letter of an answer that stands in a text, as a capital; whatever stands around it."""
    return next((letter for letter in said if letter in LETTERS[:choices]), None)


class ChoiceTasks(DrawnTasks):
    """Seeded questions; one stands in one split, with whatever answers."""

    def __init__(self, args: ChoiceArgs) -> None:
        super().__init__(
            "choice",
            partial(make_task, args),
            num_tasks=args.num_tasks,
            seed=args.seed,
            split=args.split,
            identity="question",
        )
