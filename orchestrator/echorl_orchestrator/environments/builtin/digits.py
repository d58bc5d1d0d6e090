"""``builtin:digits``: one question about a row of digits, answered with one digit.

An untrained model finds the reward by chance: the first digit of the answer counts, whatever stands around it.
"""

from functools import partial
from typing import Any

from echorl_orchestrator.environments.builtin.parts.digit_questions import DigitsArgs, make_task
from echorl_orchestrator.environments.builtin.parts.drawn import DrawnTasks
from echorl_orchestrator.environments.contract import Action, Environment, Step

KIND = "text_env"


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
