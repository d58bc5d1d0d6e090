"""``builtin:swe``: an agent of any make works on a repository in a sandbox, and its diff is graded in another one.

user       calc.py: add(2, 3) is -1, want 5
assistant  read calc.py                    -> tool  1 def add(a, b):
                                                    2     return a - b
assistant  replace calc.py 2     return a + b -> tool  ok
assistant  submit                          -> reward 1, when the tests pass in a clean sandbox
"""

from typing import Any

from echorl_orchestrator.environments.builtin.parts.swe.args import SweArgs
from echorl_orchestrator.environments.builtin.parts.swe.runner import SweRunner, SweTasks
from echorl_orchestrator.environments.contract import Environment

KIND = "runner"


def build(**args: Any) -> Environment:
    """The environment that ``builtin:swe`` names."""
    checked = SweArgs.model_validate(args)
    rows = checked.rows()
    return Environment(SweTasks(rows), runner=SweRunner(checked, rows), check_episode_time=checked.times)
