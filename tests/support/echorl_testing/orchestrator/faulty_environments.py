"""An environment of whole runs, some of whose episodes go wrong. Runs in worker processes."""

import random
from pathlib import Path
from typing import Any

from echorl_orchestrator.types import Action, Environment, Step

_DOES = ("well", "raises", "well", "NaN", "well", "well", "well", "hangs", "well", "NaN", "well", "well")


class Faulty:
    """One question. The first episode of some tasks' groups raises, hangs or returns NaN."""

    def __init__(self, broken: Path) -> None:
        """Every episode raises once ``broken`` exists."""
        self._broken = broken

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Step:
        if self._broken.exists():
            raise ValueError("no such level")
        self._does = task["does"] if episode_id.rpartition("-e")[2] == "0" else "well"
        # Nothing that a policy could learn until all episodes of a group are alike and nothing is left to train.
        self._reward = random.Random(episode_id).random()
        return Step([{"role": "user", "content": f"digit {task['key']}"}])

    def step(self, action: Action) -> Step:
        if self._does == "raises":
            raise KeyError("inventory")
        while self._does == "hangs":
            pass
        return Step([], reward=float("nan") if self._does == "NaN" else self._reward, terminated=True)

    def close(self) -> None:
        pass


def faulty(broken: str, tasks: int = 480) -> Environment:
    """In any 12 tasks one has an episode that raises, one has one that hangs, and two have one that returns NaN."""
    numbers = list(range(tasks))
    random.Random(0).shuffle(numbers)
    found = [{"key": number, "does": _DOES[number % len(_DOES)]} for number in numbers]
    return Environment(found, text_env=lambda: Faulty(Path(broken)))
