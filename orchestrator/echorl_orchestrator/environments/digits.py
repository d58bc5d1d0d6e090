"""``builtin:digits``: one question about a row of digits, answered with one digit.

An untrained model finds the reward by chance: the first digit of the answer counts, whatever stands around it.
"""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from echorl_orchestrator.environments.drawn import DrawnTasks, Split
from echorl_orchestrator.types import Action, Environment, Step

NAME, KIND = "digits", "text_env"

Question = Literal["first", "last", "count", "sum", "max"]


class DigitsArgs(BaseModel):
    """Arguments of ``builtin:digits``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    split: Split = "train"
    num_tasks: int = Field(default=256, ge=1)
    seed: int = 0
    digits: int = Field(default=3, ge=1, le=9)
    """Digits a question shows; with ``count`` it is the most it shows."""
    questions: list[Question] = ["sum"]
    """Kinds of questions, mixed evenly."""
    partial: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Reward of an answer that has a digit, but a wrong one."""
    strict: bool = False
    """The whole answer must be the digit."""


def _answer(question: Question, row: Sequence[int]) -> int:
    answers = {"first": row[0], "last": row[-1], "count": len(row), "sum": sum(row) % 10, "max": max(row)}
    return answers[question]


def make_task(args: DigitsArgs, rng: random.Random) -> dict[str, Any]:
    """One question with its answer, of either split."""
    question = rng.choice(args.questions)
    size = rng.randint(1, args.digits) if question == "count" else args.digits
    row = [rng.randrange(10) for _ in range(size)]
    prompt = f"{question} {' '.join(map(str, row))}"
    return {"key": prompt, "prompt": prompt, "answer": str(_answer(question, row))}


class DigitsTasks(DrawnTasks):
    """Seeded questions."""

    def __init__(self, args: DigitsArgs) -> None:
        super().__init__("digits", partial(make_task, args), num_tasks=args.num_tasks, seed=args.seed, split=args.split)


class DigitsEnv:
    """One question, one answer."""

    def __init__(self, args: DigitsArgs) -> None:
        self._args = args
        self._answer = ""

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Step:
        """Ask."""
        self._answer = task["answer"]
        return Step([{"role": "user", "content": task["prompt"]}])

    def step(self, action: Action) -> Step:
        """Judge the answer."""
        found = [character for character in action.text if character in "0123456789"]
        exact = action.text.strip() == self._answer
        right = exact if self._args.strict else bool(found) and found[0] == self._answer
        reward = 1.0 if right else self._args.partial if found else 0.0
        return Step([], reward=reward, terminated=True, metrics={"answered": float(bool(found)), "right": float(right)})

    def close(self) -> None:
        """Nothing is held."""


def build(**args: Any) -> Environment:
    """The environment that ``builtin:digits`` names."""
    checked = DigitsArgs.model_validate(args)
    return Environment(DigitsTasks(checked), text_env=lambda: DigitsEnv(checked))
