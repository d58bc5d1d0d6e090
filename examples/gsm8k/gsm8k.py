r"""Grade-school arithmetic as an environment of your own: rows of GSM8K from a file, judged by the last boxed number.

A row of the file is JSON with ``question`` and ``answer``, which ends with ``#### 42``, as the data set has them
(Cobbe et al., 2021, arXiv:2110.14168). The reward is 1 where the last ``\boxed{...}`` of the answer is that number.
"""

import json
import re
from pathlib import Path
from typing import Any

from echorl_orchestrator.types import Action, Environment, Step

INSTRUCTION = "\n\nThink step by step and put the final number into \\boxed{}."
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_DIGITS = re.compile(r"-?\d+(?:\.\d+)?")


def number(text: str) -> float | None:
    """The number that stands in a text, thousands' commas or not; None: none does, or several do."""
    found = _DIGITS.findall(text.replace(",", ""))
    return float(found[0]) if len(found) == 1 else None


def reward(answer: str, wanted: float) -> float:
    """Of an answer: 1 if its last boxed number is the wanted one."""
    boxed = _BOXED.findall(answer)
    return float(bool(boxed) and number(boxed[-1]) == wanted)


def rows(file: Path) -> list[dict[str, Any]]:
    """The tasks of a file.

    Raises:
        ValueError: a row has no question, or no number after ``####``.
    """
    tasks = []
    for place, line in enumerate(file.read_text().splitlines(), start=1):
        row = json.loads(line)
        wanted = number(str(row.get("answer", "")).rpartition("####")[2])
        if wanted is None or not row.get("question"):
            raise ValueError(f"{file}:{place}: accepted is a row with question, and answer that ends with #### NUMBER")
        tasks.append({"key": place, "question": row["question"], "wanted": wanted})
    return tasks


class Problem:
    """One question, one answer."""

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Step:
        """Ask."""
        self._wanted = task["wanted"]
        return Step([{"role": "user", "content": task["question"] + INSTRUCTION}], reward=0.0)

    def step(self, action: Action) -> Step:
        """Compare."""
        return Step([], reward=reward(action.text, self._wanted), terminated=True)

    def close(self) -> None:
        """Nothing is held."""


def build(data: str) -> Environment:
    """``data``: a JSONL file of rows, on the run's volume."""
    return Environment(rows(Path(data)), text_env=Problem)
