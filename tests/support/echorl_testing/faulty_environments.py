"""Environments of whole runs, some of whose episodes go wrong. Runs in worker processes."""

import random
from typing import Any

from echorl_orchestrator.types import Action, Environment, Step


class Faulty:
    """One question. The first episode of some tasks' groups raises, hangs or returns NaN."""

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Step:
        self._does = task["does"] if episode_id.rpartition("-e")[2] == "0" else "well"
        return Step([{"role": "user", "content": f"digit {task['key']}"}])

    def step(self, action: Action) -> Step:
        if self._does == "raises":
            raise KeyError("inventory")
        while self._does == "hangs":
            pass
        # Of no meaning, but different among a group's episodes.
        reward = len(action.text.encode()) % 8 / 8
        return Step([], reward=float("nan") if self._does == "NaN" else reward, terminated=True)

    def close(self) -> None:
        pass


class Hopeless(Faulty):
    """Every episode raises."""

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Step:
        raise ValueError("no such level")


def partly(tasks: int = 400) -> Environment:
    """In any 8 tasks one has an episode that raises, one that hangs, and two that return NaN."""
    does = ["well", "raises", "well", "NaN", "well", "hangs", "well", "NaN"]
    numbers = list(range(tasks))
    random.Random(0).shuffle(numbers)
    return Environment([{"key": number, "does": does[number % 8]} for number in numbers], text_env=Faulty)


def hopeless() -> Environment:
    """No episode ever ends well."""
    return Environment([{"key": number} for number in range(8)], text_env=Hopeless)
