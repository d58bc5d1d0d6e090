"""``builtin:terminal-demonstrations``: conversations of a script that solves ``builtin:terminal``, for mode sft."""

from collections.abc import Sequence
from typing import Any, Literal

from echorl_orchestrator.environments.builtin.parts.terminal_policy import demonstrate
from echorl_orchestrator.environments.builtin.parts.terminal_tasks import TerminalArgs, TerminalTasks
from echorl_orchestrator.environments.builtin.parts.terminal_world import tool_definitions
from echorl_orchestrator.environments.contract import Environment

KIND = "given"


class DemonstrationArgs(TerminalArgs):
    """Arguments of ``builtin:terminal-demonstrations``: those of ``builtin:terminal``, and the script."""

    script: Literal["find", "browse", "blind", "misread"] = "find"
    """How every task is played; ``find`` always finds the answer."""


class Demonstrations(Sequence[dict[str, Any]]):
    """A conversation for each task of ``builtin:terminal``, played in the real environment; always the same."""

    def __init__(self, args: DemonstrationArgs) -> None:
        self._args = args
        self._tasks = TerminalTasks(args)

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: Any) -> Any:
        task = self._tasks[index]
        played = demonstrate(task, self._args, seed=f"{self._args.seed}:{task['key']}", mix={self._args.script: 1.0})
        tools = tool_definitions(self._args.tools)
        return {"key": task["key"], "messages": played.messages, "tools": tools, "reward": played.reward}


def build(**args: Any) -> Environment:
    """The environment that ``builtin:terminal-demonstrations`` names."""
    return Environment(Demonstrations(DemonstrationArgs.model_validate(args)), given=True)
