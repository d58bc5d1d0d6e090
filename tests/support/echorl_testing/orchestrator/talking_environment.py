"""An environment that answers whatever a model says, so that there are environment tokens to learn from any model."""

from functools import partial
from pathlib import Path
from typing import Any

from echorl_orchestrator.types import Action, Environment, Step

_TASKS = 64


class Talker:
    """Asks for a letter, says what it was, and asks once more; each turn that has it gives half of the reward."""

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Step:
        self._letter, self._turns = task["letter"], 0
        return Step([{"role": "user", "content": "guess"}])

    def step(self, action: Action) -> Step:
        self._turns += 1
        found = self._letter in action.text
        reply = [{"role": "user", "content": f"it was {self._letter}; guess"}]
        return Step([] if self._turns == 2 else reply, reward=0.5 * found, terminated=self._turns == 2)

    def close(self) -> None:
        """Nothing is held."""


class Moody:
    """Asks about its task, then says a file's line that is its episode's in the group; rewards say little."""

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Step:
        self._turns, self._line = 0, int(episode_id[-1])
        return Step([{"role": "user", "content": f"task {task['key']}"}])

    def step(self, action: Action) -> Step:
        self._turns += 1
        reply = [{"role": "user", "content": self._file.read_text().splitlines()[self._line]}]
        return Step([] if self._turns == 2 else reply, reward=len(action.text) % 3 / 3, terminated=self._turns == 2)

    def close(self) -> None:
        """Nothing is held."""


class _Tasks:
    def __len__(self) -> int:
        return _TASKS

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < _TASKS:
            raise IndexError(index)
        return {"key": index, "letter": "abcdefgh"[index % 8]}


def talking() -> Environment:
    """The environment that ``import:echorl_testing.orchestrator.talking_environment:talking`` names."""
    return Environment(_Tasks(), text_env=Talker)


def moody(file: str) -> Environment:
    """The environment that ``import:echorl_testing.orchestrator.talking_environment:moody`` names."""
    return Environment(_Tasks(), text_env=partial(Moody, file))
