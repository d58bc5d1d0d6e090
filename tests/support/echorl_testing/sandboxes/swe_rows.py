"""Rows and agents of ``builtin:swe`` for tests, and episodes of them."""

from dataclasses import replace
from typing import Any

from echorl_orchestrator.environments.builtin.parts.swe.args import SweArgs
from echorl_orchestrator.environments.builtin.parts.swe.row import Row, SuiteGrader
from echorl_orchestrator.environments.builtin.parts.swe.runner import SweRunner
from echorl_orchestrator.sandboxes.contract import Sandboxes, SandboxLimits
from echorl_orchestrator.types import Limits, RunnerResult

SOURCE = b"def add(a, b):\n    return a - b\n"
FIXED = b"def add(a, b):\n    return a + b\n"
FIX = "sed -i 's/a - b/a + b/' calc.py"
GOLD = (
    b"diff --git a/calc.py b/calc.py\n--- a/calc.py\n+++ b/calc.py\n"
    b"@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
)
_TESTS = b"""import unittest
import calc
class Tests(unittest.TestCase):
    def test_add(self): self.assertEqual(calc.add(%d, 3), %d)
    def test_same(self): self.assertEqual(calc.add(4, 0), 4)
"""
ROW = Row(
    key="calc-1",
    image="host",
    workdir="/repo",
    statement="calc.py: add(2, 3) is -1, want 5",
    grader=SuiteGrader(
        "unittest", ("tests/test_calc.py",), ("tests.test_calc.Tests.test_add",), ("tests.test_calc.Tests.test_same",)
    ),
    files={"calc.py": SOURCE, "tests/__init__.py": b"", "tests/test_calc.py": _TESTS % (2, 5)},
    test_files={"tests/__init__.py": b"", "tests/test_calc.py": _TESTS % (90125, 90128)},
    gold=GOLD,
)
SMALL = SandboxLimits(cpu=1.0, memory_bytes=256 << 20, disk_bytes=64 << 20, processes=64)
"""Of sandboxes; enough for the rows here."""
HIDDEN = "90125"
"""Stands in the tests that grade, and nowhere else."""
BROKEN = replace(ROW, key="broken-1", setup=("echo preparing", "false"))


def shell_agent(script: str) -> dict[str, Any]:
    """An agent that is a shell script."""
    return {"command": ["/bin/sh", "-c", script]}


async def episode(
    sandboxes: Sandboxes, agent: Any, *, row: Row = ROW, base_url: str = "http://127.0.0.1:9/s/KEY/v1", **args: Any
) -> RunnerResult:
    """One episode of ``row``; ``agent`` is a shell script, or as ``args.agent``."""
    chosen = shell_agent(agent) if isinstance(agent, str) and " " in agent else agent
    checked = SweArgs.model_validate({"agent": chosen, "agent_timeout_s": 60.0, **args})
    runner = SweRunner(checked, [row])
    bounds = Limits(None, 3600.0, 4096)
    return await runner.run(
        {"key": row.key}, base_url=base_url, session="KEY", model="policy", limits=bounds, sandboxes=sandboxes
    )
