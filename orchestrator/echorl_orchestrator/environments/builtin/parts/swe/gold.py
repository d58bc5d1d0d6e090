"""Whether a row can teach anything: its own fix must be worth 1, and doing nothing 0."""

import secrets
from dataclasses import dataclass
from typing import Literal

from echorl_orchestrator.environments.builtin.parts.swe.args import SweArgs
from echorl_orchestrator.environments.builtin.parts.swe.grading import grade
from echorl_orchestrator.environments.builtin.parts.swe.row import Row
from echorl_orchestrator.environments.builtin.parts.swe.times import StageTimes
from echorl_orchestrator.environments.builtin.parts.swe.verdict import Verdict
from echorl_orchestrator.environments.builtin.parts.swe.work import Workplace
from echorl_orchestrator.failures import ClassedError, HarnessError
from echorl_orchestrator.sandboxes.contract import SandboxError, Sandboxes


@dataclass(frozen=True)
class Checked:
    """What is to be done with a row."""

    key: str
    say: Literal["ok", "drop", "unknown"]
    """``unknown``: its sandboxes were lost twice, which says nothing of the row."""
    why: str = ""


async def check(row: Row, args: SweArgs, times: StageTimes, sandboxes: Sandboxes, *, repeat: int) -> Checked:
    """Grade the row's own fix ``repeat`` times, and nothing at all once; a lost sandbox is made once more."""
    for last in (False, True):
        try:
            why = await _problem(row, args, times, sandboxes, repeat)
        except HarnessError as error:
            return Checked(row.key, "drop", str(error).removeprefix(f"{row.key}: "))
        except (SandboxError, ClassedError) as error:
            if last:
                return Checked(row.key, "unknown", str(error))
        else:
            return Checked(row.key, "drop" if why else "ok", why)
    raise AssertionError


async def _problem(row: Row, args: SweArgs, times: StageTimes, sandboxes: Sandboxes, repeat: int) -> str:
    diff = await Workplace(args, times).solve(sandboxes, row, f"{secrets.token_hex(8)}-solve")
    for number in range(repeat):
        verdict = await _graded(row, times, sandboxes, diff)
        if verdict.reward != 1.0:
            again = f", the {number + 1}. time" if number else ""
            return f"gold patch: worth {verdict.reward:g}{again}: {verdict.reason}"
    verdict = await _graded(row, times, sandboxes, b"")
    return f"empty patch: worth {verdict.reward:g}: {verdict.reason}" if verdict.reward else ""


async def _graded(row: Row, times: StageTimes, sandboxes: Sandboxes, diff: bytes) -> Verdict:
    key = f"{secrets.token_hex(8)}-grader"
    return (await grade(sandboxes, row, diff, None, key=key, times=times)).verdict
