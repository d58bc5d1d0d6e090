"""``builtin:choice``: one multiple-choice question, answered with a letter. The first letter of an answer counts."""

from typing import Any

from echorl_orchestrator.environments.builtin.parts.choice_tasks import ChoiceArgs, ChoiceTasks, first_letter, shown
from echorl_orchestrator.environments.contract import Action, Environment, Step

KIND = "text_env"


class ChoiceEnv:
    """One question, one answer."""

    def __init__(self, args: ChoiceArgs) -> None:
        self._args = args
        self._right = ""

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Step:
        """Ask."""
        self._right = task["right"]
        return Step([{"role": "user", "content": shown(task)}])

    def step(self, action: Action) -> Step:
        """Judge the answer."""
        letter = first_letter(action.text, self._args.choices)
        right = letter == self._right
        metrics = {"answered": float(letter is not None), "right": float(right)}
        return Step([], reward=float(right), terminated=True, metrics=metrics)

    def close(self) -> None:
        """Nothing is held."""


def build(**args: Any) -> Environment:
    """The environment that ``builtin:choice`` names."""
    checked = ChoiceArgs.model_validate(args)
    return Environment(ChoiceTasks(checked), text_env=lambda: ChoiceEnv(checked))
