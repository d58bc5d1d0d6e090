"""A seeded multiple-choice set that ``builtin:choice``, ``builtin:debate`` and ``builtin:consultancy`` share.

A question about a row of digits, and answers of which one is right:

    max 3 8 5
    A) 8
    B) 5
"""

import hashlib
import random
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from echorl_orchestrator.environments.digits import DigitsArgs, Question
from echorl_orchestrator.environments.digits import make_task as make_digits

LETTERS = "ABCDEFGHIJ"
_TEST_SHARE = 5  # one question in five belongs to the test split


class ChoiceArgs(BaseModel):
    """Arguments that the three environments share: equal ones give the same questions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    split: Literal["train", "test"] = "train"
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


class ChoiceTasks:
    """Seeded questions; the same one never stands in both splits. Questions may repeat within one."""

    def __init__(self, args: ChoiceArgs) -> None:
        self._args = args

    def __len__(self) -> int:
        """How many there are."""
        return self._args.num_tasks

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Question ``index``."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        rng = random.Random(f"choice:{self._args.seed}:{self._args.split}:{index}")
        while True:
            task = make_task(self._args, rng)
            digest = hashlib.sha256(f"{task['question']}".encode()).digest()
            if (digest[0] % _TEST_SHARE == 0) == (self._args.split == "test"):
                return task
