"""Plays an episode: an agent works on a row in one sandbox, and what it changed is graded in another, clean one.

How an episode ends is one of a few classes, found by exit codes, deadlines, sandboxes and the diff, never by text:

infrastructure  a sandbox was lost or not there          raised: played once more, then left out
harness         the row cannot be prepared or graded     raised: left out
agent           crash, budget or sandbox used up         ``on_agent_failure``; its diff is graded all the same
emptyDiff       the agent changed nothing                reward 0
graded          the tests have spoken                    their reward
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echorl_orchestrator.environments.builtin.parts.swe.args import SweArgs
from echorl_orchestrator.environments.builtin.parts.swe.grading import Grade, grade
from echorl_orchestrator.environments.builtin.parts.swe.row import Row
from echorl_orchestrator.environments.builtin.parts.swe.times import StageTimes
from echorl_orchestrator.environments.builtin.parts.swe.verdict import Verdict
from echorl_orchestrator.environments.builtin.parts.swe.work import Calls, Work, Workplace
from echorl_orchestrator.environments.contract import Limits, RunnerResult
from echorl_orchestrator.failures import AgentError, HarnessError
from echorl_orchestrator.sandboxes.contract import Sandboxes

_TOLD_BYTES = 64 << 10


class SweTasks(Sequence[dict[str, Any]]):
    """What the orchestrator sees of rows: their keys and words. Tests and fixes stay where they are needed."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        row = self._rows[index]
        return {"key": row.key, "statement": row.statement}


@dataclass(frozen=True)
class Played:
    """What an agent has done, and what that is worth; ``grade`` is None where there was nothing to grade."""

    work: Work
    grade: Grade | None
    reward: float
    ended: str


class SweRunner:
    """Plays rows by their keys."""

    def __init__(self, args: SweArgs, rows: Sequence[Row]) -> None:
        self._args, self._rows = args, {row.key: row for row in rows}

    async def run(
        self,
        task: dict[str, Any],
        *,
        base_url: str,
        session: str,
        model: str,
        limits: Limits,
        sandboxes: Sandboxes | None = None,
    ) -> RunnerResult:
        """Play one episode; see the module."""
        if sandboxes is None:
            raise HarnessError("builtin:swe plays in sandboxes, and the run has none: set spec.sandboxes")
        times = self._args.times(limits.timeout_s)
        played = await self.play(self._rows[str(task["key"])], Calls(base_url, session, model), times, sandboxes)
        return _result(played)

    async def play(self, row: Row, calls: Calls, times: StageTimes, sandboxes: Sandboxes) -> Played:
        """Let the agent work on ``row`` and grade what it did, each stage within its time.

        Raises:
            AgentError: the agent failed, and that is not scored.
            HarnessError, InfrastructureError, SandboxError: see the module.
        """
        # No sandbox is called as another one was, and none by the session's key, which is a secret.
        key = secrets.token_hex(8)
        work = await Workplace(self._args, times).work(sandboxes, row, calls, f"{key}-agent")
        if work.failure is not None and self._args.on_agent_failure != "grade":
            if self._args.on_agent_failure == "drop":
                raise AgentError(f"{row.key}: {work.failure}")
            return Played(work, None, 0.0, "agent")
        if not work.diff:
            return Played(work, None, 0.0, "emptyDiff" if work.failure is None else "agent")
        graded = await grade(sandboxes, row, work.diff, work.base, key=f"{key}-grader", times=times)
        return Played(work, graded, graded.verdict.reward, "graded" if work.failure is None else "agent")


def _result(played: Played) -> RunnerResult:
    work, graded = played.work, played.grade
    found = graded.verdict if graded is not None else Verdict(0.0, "nothing to grade")
    metrics = {
        "resolved": float(played.reward == 1.0),
        "agent_failed": float(work.failure is not None),
        "agent_late": float(work.late),
        "empty_diff": float(not work.diff),
        "diff_bytes": float(len(work.diff)),
        "agent_s": work.seconds,
    }
    if graded is not None:
        metrics |= {"grade_s": graded.seconds, "applied": float(graded.rung > 0), "grade_valid": float(found.valid)}
    info = {
        "ended": played.ended,
        "verdict": found.reason,
        "failed_tests": found.failed,
        "diff": work.diff[:_TOLD_BYTES].decode(errors="replace"),
        "agent_failure": work.failure,
        "agent_output": work.output,
        "grader_output": graded.output if graded is not None else "",
    }
    return RunnerResult(played.reward, metrics, info, truncated=work.late, agent_failure=work.failure)
