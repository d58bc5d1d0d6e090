"""Episodes of ``builtin:swe`` in real sandboxes: what an agent's work is worth, however it goes about it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from echorl_orchestrator.environments.builtin.parts.swe.row import CommandGrader, SuiteGrader
from echorl_orchestrator.failures import AgentError, HarnessError, InfrastructureError
from echorl_orchestrator.sandboxes.contract import SandboxError, SandboxLoss
from echorl_orchestrator.sandboxes.process.provider import ProcessSandboxes
from echorl_testing import campaign
from echorl_testing.sandboxes.scripted_model import ScriptedModel, served
from echorl_testing.sandboxes.swe_rows import BROKEN, FIX, HIDDEN, ROW, SMALL, episode

REPLACE = ("replace", {"path": "calc.py", "line": 2, "text": "    return a + b"})


@pytest.fixture
async def boxes(tmp_path: Path) -> AsyncIterator[ProcessSandboxes]:
    """Sandboxes whose gateway nobody answers at; none is left after an episode."""
    made = ProcessSandboxes(tmp_path / "sandboxes", ("127.0.0.1", 9), SMALL)
    try:
        yield made
        assert await made.list() == []
    finally:
        await made.close()


async def test_the_scripted_agent_reads_fixes_tests_and_submits(tmp_path: Path) -> None:
    model = ScriptedModel([("list", {}), ("read", {"path": "calc.py"}), REPLACE, ("test", {}), ("submit", {})])
    async with served(model) as address:
        made = ProcessSandboxes(tmp_path / "sandboxes", address, SMALL)
        try:
            played = await episode(made, "scripted")
            assert await made.list() == []
        finally:
            await made.close()
    assert (played.reward, played.info["ended"], played.agent_failure) == (1.0, "graded", None)
    assert set(model.keys) == {"Bearer KEY"}
    assert model.asked[0]["messages"] == [{"role": "user", "content": ROW.statement}]
    answers = [message["content"] for message in model.asked[-1]["messages"] if message["role"] == "tool"]
    assert answers[0].splitlines() == ["calc.py", "tests/__init__.py", "tests/test_calc.py"]
    assert answers[1] == "1 def add(a, b):\n2     return a - b"
    assert answers[2] == "ok"
    assert answers[3].splitlines()[-1] == "OK"
    assert "+    return a + b" in played.info["diff"]


async def test_an_agent_whose_model_is_gone_has_failed_by_its_exit_code(tmp_path: Path) -> None:
    model = ScriptedModel([REPLACE])
    async with served(model) as address:
        made = ProcessSandboxes(tmp_path / "sandboxes", address, SMALL)
        try:
            played = await episode(made, "scripted")
        finally:
            await made.close()
    assert played.agent_failure is not None
    assert played.agent_failure.startswith("the agent ended with 1")
    assert (played.reward, played.metrics["agent_failed"]) == (1.0, 1.0)  # its diff was good


async def test_an_agent_that_ends_well_with_nothing_done_is_worth_nothing(boxes: ProcessSandboxes) -> None:
    played = await episode(boxes, "echo 'all tests PASSED'; exit 0")
    assert (played.reward, played.info["ended"], played.agent_failure) == (0.0, "emptyDiff", None)
    assert played.metrics["empty_diff"] == 1.0


@pytest.mark.parametrize(
    "script",
    [
        f"{FIX} && git -c user.name=x -c user.email=x@y commit -qam done",
        f"{FIX} && git checkout -qb other && git add -A && rm -rf .git/refs",
        f"{FIX} && rm -rf .git",
        f"{FIX} && git config core.fsmonitor 'touch /tmp/ran' && echo '*.py filter=x' > .gitattributes",
        f"{FIX} && echo '*' > .gitignore && echo data > new.txt",
        f"cp calc.py other.py && rm calc.py && mv other.py calc.py && {FIX} && chmod 755 calc.py",
    ],
    ids=["committed", "branched", "no repository", "own settings", "ignored", "moved about"],
)
async def test_a_fix_is_a_fix_whatever_was_done_to_the_repository(boxes: ProcessSandboxes, script: str) -> None:
    assert (await episode(boxes, script)).reward == 1.0


ADVERSARIES = {
    "edits the tests": "echo > tests/test_calc.py",
    "removes the tests": "rm -rf tests",
    "puts a link in their place": "rm -rf tests && ln -s /etc tests",
    "puts a file in their place": "rm -rf tests && echo > tests",
    "ends the run": "printf 'import os\\nos._exit(0)\\n' > calc.py",
    "ends the run politely": "printf 'import sys\\nsys.exit(0)\\n' > calc.py",
    "prints a report": "echo 'print(\"test_add ... ok\\\\nRan 2 tests\\\\nOK\", flush=True)' >> calc.py",
    "brings a unittest of its own": "echo 'def main(): pass' > unittest.py",
    "brings a package of tests' name": "mkdir -p tests && echo 'raise SystemExit(0)' > tests/__init__.py",
    "says it in the report's name": "mkdir -p /tmp/echorl && echo '{\"tests\": {}}' > report.json",
    "links the module outside": "rm calc.py && ln -s /etc/passwd calc.py",
    "writes outside the work tree": "mkdir -p /tmp/x; echo > /tmp/x/calc.py; echo > other.py",
}


@pytest.mark.parametrize("name", campaign.campaign_params("adversaries", list(ADVERSARIES), 4))
async def test_what_is_no_fix_is_worth_nothing(boxes: ProcessSandboxes, name: str) -> None:
    played = await episode(boxes, f"{ADVERSARIES[name]}; exit 0")
    assert played.reward == 0.0
    assert played.info["ended"] == "graded", played.info


async def test_the_tests_that_grade_are_nowhere_to_be_found(boxes: ProcessSandboxes) -> None:
    played = await episode(boxes, f"grep -rl {HIDDEN} / --exclude-dir=proc --exclude-dir=usr; env; ls -la /tmp/echorl")
    assert HIDDEN not in played.info["agent_output"].replace(f"grep -rl {HIDDEN}", "")
    assert "test_calc.py\n" not in played.info["agent_output"]


async def test_nothing_of_an_agent_goes_on_after_it(boxes: ProcessSandboxes) -> None:
    undo = "while true; do sed -i 's/a + b/a - b/' calc.py; done"
    played = await episode(boxes, f'{FIX}; cp calc.py good; (setsid sh -c "sleep 1; {undo}" &) ; exit 0')
    assert played.reward == 1.0


async def test_an_agent_over_its_budget_is_worth_what_is_there(boxes: ProcessSandboxes) -> None:
    played = await episode(boxes, f"{FIX}; sleep 1000 & sleep 1000", agent_timeout_s=5.0)
    assert (played.reward, played.truncated, played.metrics["agent_late"]) == (1.0, True, 1.0)
    assert played.agent_failure == "the agent had not ended after 5 s"


@pytest.mark.parametrize(("rule", "reward"), [("grade", 1.0), ("zero", 0.0), ("drop", None)])
async def test_a_crash_is_scored_as_the_manifest_says(boxes: ProcessSandboxes, rule: str, reward: float | None) -> None:
    if reward is None:
        with pytest.raises(AgentError, match="calc-1: the agent ended with 3"):
            await episode(boxes, f"{FIX}; exit 3", on_agent_failure=rule)
        return
    played = await episode(boxes, f"{FIX}; exit 3", on_agent_failure=rule)
    assert (played.reward, played.info["ended"]) == (reward, "agent")


@pytest.mark.parametrize(
    ("script", "args"),
    [
        ("dd if=/dev/zero of=big bs=1M count=500; exit 0", {}),
        ("head -c 4000 /dev/urandom > big; exit 0", {"longest_diff_bytes": 2000}),
        ("python3 -c 'x = [bytearray(1 << 20) for _ in range(400)]; import time; time.sleep(30)'", {}),
        ("python3 -c 'import os\nwhile True: os.fork()'; exit 7", {"agent_timeout_s": 10.0}),
    ],
    ids=["disk", "diff", "memory", "processes"],
)
async def test_what_an_agent_uses_up_is_its_own_failure(
    boxes: ProcessSandboxes, script: str, args: dict[str, Any]
) -> None:
    played = await episode(boxes, script, **args)
    assert (played.reward, played.info["ended"]) == (0.0, "agent")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (BROKEN, "broken-1: setup: ended with 1: preparing"),
        (replace(ROW, base_commit="0" * 40), "calc-1: baseline: ended with 3: HEAD does not descend from base_commit"),
        (
            replace(ROW, grader=SuiteGrader("unittest", (), ("x",), (), b"--- a/no\n+++ b/no\n@@ -1 +1 @@\n-1\n+2\n")),
            "calc-1: test_patch: ended with 1: error: no: No such file or directory",
        ),
        (replace(ROW, grader=CommandGrader("sleep 100")), "calc-1: tests: ran out of time"),
        (replace(ROW, grader=CommandGrader("kill -9 $$")), "calc-1: tests: killed, and reported no failure"),
        (replace(ROW, setup=("date +%N%N > calc.py",)), "the set-up made another tree than before"),
    ],
    ids=["setup", "base", "test patch", "timeout", "killed", "set-up differs"],
)
async def test_a_row_that_cannot_be_played_or_graded_is_the_harness_failure(
    boxes: ProcessSandboxes, row: Any, problem: str
) -> None:
    timeout_s = 2.0 if "out of time" in problem else 30.0
    with pytest.raises(HarnessError, match=problem):
        await episode(boxes, "echo more > calc.py; exit 0", row=row, test_timeout_s=timeout_s)


async def test_tests_that_are_killed_once_they_have_reported_are_worth_what_failed(boxes: ProcessSandboxes) -> None:
    dies = b"import atexit, os\natexit.register(os.kill, os.getpid(), 9)\n"
    place = "tests/test_calc.py"
    row = replace(ROW, test_files={**ROW.test_files, place: ROW.test_files[place] + dies})
    with pytest.raises(HarnessError, match="calc-1: tests: killed, and reported no failure"):
        await episode(boxes, f"{FIX}; exit 0", row=row)
    assert (await episode(boxes, "echo more > calc.py; exit 0", row=row)).reward == 0.0


async def test_a_script_of_ours_that_is_killed_says_nothing(boxes: ProcessSandboxes) -> None:
    with pytest.raises(InfrastructureError, match="calc-1: a script of ours was killed from outside"):
        await episode(boxes, "true; true", row=replace(ROW, setup=("kill -9 $$",)))


async def test_an_image_that_is_not_there_is_infrastructure(boxes: ProcessSandboxes) -> None:
    with pytest.raises(SandboxError) as lost:
        await episode(boxes, "true; true", row=replace(ROW, image="/nowhere"))
    assert lost.value.loss is SandboxLoss.IMAGE


@pytest.mark.parametrize(
    ("command", "reward"),
    [
        ("python3 -m unittest -q tests/test_calc.py", 1.0),
        ("grep -q 'a [*] b' calc.py", 0.0),
        ("mkdir -p /logs && echo 0.5 > /logs/reward.txt", 0.5),
    ],
)
async def test_a_rows_own_command_grades(boxes: ProcessSandboxes, command: str, reward: float) -> None:
    row = replace(ROW, grader=CommandGrader(command, reward_file="/logs/reward.txt"))
    assert (await episode(boxes, f"{FIX}; exit 0", row=row)).reward == reward
