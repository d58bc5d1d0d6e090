"""An engine whose model fixes seeded repositories as often as it is told to: real wire, scripted words."""

import random
from collections.abc import Sequence
from typing import Any

from echorl_orchestrator.environments.builtin.parts.swe.row import Row
from echorl_orchestrator.environments.builtin.parts.swe.seeded import SeededBug, bug_of
from echorl_testing.engines.fake_engine import FakeEngine

_RIGHT, _WRONG = 0.55, 0.3
"""Shares of conversations that end with the fix and with another change; the others end with none."""
_ANSWERED = "<tool_response>"


class FixingEngine(FakeEngine):
    """Answers by the tools of the scripted agent: it reads the file, replaces a line, and submits."""

    def __init__(self, rows: Sequence[Row], tokenizer: Any, seed: int) -> None:
        """``tokenizer``: of the policy; ``seed``: of what the model does, in the order of being asked."""
        super().__init__()
        self._bugs = {row.statement: bug_of(row) for row in rows}
        self._tokenizer, self._chance = tokenizer, random.Random(seed)

    def _sampled(self, prompt: list[int], params: dict[str, Any]) -> tuple[list[int], str]:
        ids = self._tokenizer.encode(self._says(self._tokenizer.decode(prompt)))
        return ids[: params["max_tokens"]], "stop"

    def _says(self, text: str) -> str:
        bug = next(bug for statement, bug in self._bugs.items() if statement in text)
        turn = text.count(_ANSWERED)
        call = f"read {bug.path}" if turn == 0 else self._change(bug) if turn == 1 else "submit"
        return f"<tool_call>{call}</tool_call><|im_end|>"

    def _change(self, bug: SeededBug) -> str:
        drawn = self._chance.random()
        if drawn < _RIGHT:
            return f"replace {bug.path} {bug.line} {bug.right}"
        return f"replace {bug.path} {bug.line} {bug.wrong}  # the same" if drawn < _RIGHT + _WRONG else "submit"
