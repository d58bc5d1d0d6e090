"""Prompts of many letters whose answers are rewarded by chance: work for both phases that no training changes."""

import random
from typing import Any

from echorl_orchestrator.types import Action, Environment, Step


class Letters:
    """One prompt, one answer."""

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Step:
        """Show the letters."""
        return Step([{"role": "user", "content": task["letters"]}], reward=0.0)

    def step(self, action: Action) -> Step:
        """Whether the answer's length is even, so that half of the answers to any prompt are right."""
        return Step([], reward=float(len(action.text) % 2 == 0), terminated=True)

    def close(self) -> None:
        """Nothing is held."""


def build(length: int, num_tasks: int = 4096) -> Environment:
    """``length``: letters of a prompt, which are as many tokens of a model of bytes."""
    chance = random.Random(length)
    letters = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz ", k=length)) for _ in range(num_tasks)]
    return Environment([{"key": number, "letters": one} for number, one in enumerate(letters)], text_env=Letters)
