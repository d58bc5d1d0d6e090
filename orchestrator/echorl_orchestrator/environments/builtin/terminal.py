"""``builtin:terminal``: find a value in a small file tree with shell-like tools, then submit it.

user       port?
assistant  grep port            -> tool  etc/a
assistant  cat etc/a            -> tool  # etc/a
                                         port=fern
assistant  submit fern          -> reward 1
"""

from typing import Any

from echorl_orchestrator.environments.builtin.parts.terminal_tasks import TerminalArgs, TerminalTasks
from echorl_orchestrator.environments.builtin.parts.terminal_world import TerminalEnv
from echorl_orchestrator.environments.contract import Environment

KIND = "text_env"


def build(**args: Any) -> Environment:
    """The environment that ``builtin:terminal`` names."""
    checked = TerminalArgs.model_validate(args)
    return Environment(TerminalTasks(checked), text_env=lambda: TerminalEnv(checked))
