"""``builtin:debate``: ``a`` argues for answer A, ``b`` for answer B, and a judge, or a rule, decides. Zero-sum.

After Irving, Christiano and Amodei, "AI safety via debate" (arXiv:1805.00899). The winner gets 1, the loser -1; judge
and ties get 0.
"""

from collections.abc import Mapping
from typing import Any, Literal

from echorl_orchestrator.environments.builtin.parts.arguing import ArguingArgs, Case
from echorl_orchestrator.environments.builtin.parts.choice_tasks import ChoiceTasks
from echorl_orchestrator.environments.contract import LEARNER_SEAT, Environment

KIND = "multi_agent"

ADVOCATES = ("a", "b")


class DebateArgs(ArguingArgs):
    """Arguments of ``builtin:debate``."""

    speaking: Literal["together", "inTurn"] = "together"
    """Whether the debaters of a round speak without having heard each other."""
    learner_seat: Literal["a", "b", "alternate"] = "alternate"
    """``learnerSeat`` of the tasks: what evals report, and who learns beside a frozen debater."""


class DebateTasks(ChoiceTasks):
    """The shared questions, each with a learner's seat."""

    def __init__(self, args: DebateArgs) -> None:
        super().__init__(args)
        self._seat = args.learner_seat

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Question ``index``."""
        seat = ADVOCATES[index % 2] if self._seat == "alternate" else self._seat
        return {**super().__getitem__(index), LEARNER_SEAT: seat}


def rewards(sides: Mapping[str, str], decided: str | None) -> dict[str, float]:
    """1 for whoever argued for what was decided, -1 for the other; 0 for both if nothing was."""
    return {member: 0.0 if decided is None else 1.0 if side == decided else -1.0 for member, side in sides.items()}


def build(**args: Any) -> Environment:
    """The environment that ``builtin:debate`` names."""
    checked = DebateArgs.model_validate(args)
    case = Case(checked, ADVOCATES, lambda task: {"a": "A", "b": "B"}, rewards)
    return Environment(DebateTasks(checked), multi_agent=case.built(together=checked.speaking == "together"))
