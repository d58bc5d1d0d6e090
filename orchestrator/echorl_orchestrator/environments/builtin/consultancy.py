"""``builtin:consultancy``: one consultant argues for an answer, right or wrong, and a judge, or a rule, decides.

The baseline that debate is measured against (arXiv:2407.04622). The consultant gets 1 if its answer is decided on, -1
if another is; judge and undecided 0.
"""

from collections.abc import Mapping
from typing import Any

from echorl_orchestrator.environments.builtin.parts.arguing import ArguingArgs, Case
from echorl_orchestrator.environments.builtin.parts.choice_tasks import LETTERS, ChoiceTasks
from echorl_orchestrator.environments.contract import LEARNER_SEAT, Environment

KIND = "multi_agent"

CONSULTANT = "consultant"


class ConsultancyTasks(ChoiceTasks):
    """The shared questions, each with the answer that the consultant argues for: A and B in turn."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Question ``index``."""
        task = super().__getitem__(index)
        side = LETTERS[index % 2]
        return {**task, "key": f"{task['key']} {side}", "side": side, LEARNER_SEAT: CONSULTANT}


def rewards(sides: Mapping[str, str], decided: str | None) -> dict[str, float]:
    """1 if the consultant's answer was decided on, -1 if another was, 0 if none."""
    return {member: 0.0 if decided is None else 1.0 if side == decided else -1.0 for member, side in sides.items()}


def build(**args: Any) -> Environment:
    """The environment that ``builtin:consultancy`` names."""
    checked = ArguingArgs.model_validate(args)
    case = Case(checked, (CONSULTANT,), lambda task: {CONSULTANT: task["side"]}, rewards)
    return Environment(ConsultancyTasks(checked), multi_agent=case.built(together=True))
