"""Questions about a row of digits: tasks of ``builtin:digits``, and with answers to choose from those of other ones."""

import random
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from echorl_orchestrator.environments.builtin.parts.drawn import Split

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
