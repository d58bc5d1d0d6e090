"""Grades a diff in a clean sandbox, without network, gateway or anything that the agent has run."""

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from echorl_orchestrator.environments.builtin.parts.swe import diffs, inside, repository, verdict
from echorl_orchestrator.environments.builtin.parts.swe.box import HARNESS, Box, Ran, harness_of
from echorl_orchestrator.environments.builtin.parts.swe.preparing import prepare
from echorl_orchestrator.environments.builtin.parts.swe.row import CommandGrader, Row
from echorl_orchestrator.environments.builtin.parts.swe.times import StageTimes
from echorl_orchestrator.environments.builtin.parts.swe.verdict import SuiteReport, Verdict
from echorl_orchestrator.sandboxes.contract import Command, Sandboxes, SandboxSpec

_LONGEST_REPORT_BYTES = 32 << 20
_REPORTER = Path(inside.__file__).with_name("echorl_report.py")


@dataclass(frozen=True)
class Grade:
    """What grading came to."""

    verdict: Verdict
    output: str = ""
    """Of the tests, the end."""
    rung: int = 0
    """Which way the diff applied, from 1; 0 if in none."""
    seconds: float = 0.0


async def grade(sandboxes: Sandboxes, row: Row, diff: bytes, base: str | None, *, key: str, times: StageTimes) -> Grade:
    """Grade ``diff``, taken against the baseline ``base`` if that is known, in a sandbox that is gone afterwards.

    Raises:
        HarnessError: the row cannot be graded: its set-up fails, its tests do not apply, outlast their deadline, or
            are killed.
        SandboxError: the sandbox was lost.
        InfrastructureError: it does not answer.
    """
    started = time.monotonic()
    spec = SandboxSpec(row.image, row.workdir, ttl_s=2 * (times.setup_s + times.tests_s) + 600.0)
    try:
        with harness_of(row.key, "grading"):
            box = await Box.make(sandboxes, spec, key, row.key, times.create_s)
            prepared = await prepare(box, row, agent=False, seconds=times.setup_s)
            applied = await repository.apply(box, row.workdir, diff, seconds=times.diff_s)
            if applied is None:
                if base is not None and prepared.base != base:
                    box.failed("apply", "the set-up made another tree than before, and the diff does not apply to it")
                return Grade(Verdict(0.0, "the diff does not apply"), seconds=time.monotonic() - started)
            await _tests_put_back(box, row, applied.changed, times.diff_s)
            ran, found = await _tested(box, row, times.tests_s)
            return Grade(found, ran.output, applied.rung, time.monotonic() - started)
    finally:
        await sandboxes.destroy(key)


async def _tests_put_back(box: Box, row: Row, changed: frozenset[str], seconds: float) -> None:
    """Everything that decides what the tests are is as the row has it."""
    patch = b"" if isinstance(row.grader, CommandGrader) else row.grader.patch
    files = () if isinstance(row.grader, CommandGrader) else row.grader.files
    own = [path for path in row.test_files if not path.startswith("/")]
    paths = repository.to_restore(changed, [*files, *own, *diffs.paths(patch)], diffs.paths(row.gold or b""))
    await repository.restore(box, row.workdir, paths, seconds=seconds)
    for path, data in row.test_files.items():
        await box.put(path if path.startswith("/") else f"{row.workdir}/{path}", data)
    if patch:
        await repository.apply_tests(box, row.workdir, patch, seconds=seconds)


async def _tested(box: Box, row: Row, seconds: float) -> tuple[Ran, Verdict]:
    folder = f"{HARNESS}/{secrets.token_hex(16)}"
    place = f"{folder}/report.json"
    await box.put(f"{folder}/echorl_report.py", _REPORTER.read_bytes())
    grader = row.grader
    environment = {"ECHORL_REPORT": place, "PYTHONDONTWRITEBYTECODE": "1"}
    if isinstance(grader, CommandGrader):
        environment |= {"PYTHONPATH": folder, "PYTEST_ADDOPTS": "-p echorl_report"}
        argv = ["/bin/sh", "-c", grader.command]
    else:
        argv = [grader.python, f"{folder}/echorl_report.py", grader.runner, *grader.files]
    ran = await box.run(Command(argv, environment, root=True), seconds)
    if ran.late or ran.used_up:
        box.failed("tests", ran.told())
    report = _read(await box.get(place, _LONGEST_REPORT_BYTES))
    if ran.killed and not (report is not None and report.failed):
        # Whoever is killed after the last test has passed would else be scored as one that failed.
        box.failed("tests", f"killed, and reported no failure: {ran.told()}")
    if not isinstance(grader, CommandGrader):
        return ran, verdict.of_suite(report, ran.code, grader.required)
    written = await box.get(grader.reward_file, 1 << 10) if grader.reward_file else None
    return ran, verdict.of_command(ran.code, report, suite=grader.suite, reward=written)


def _read(data: bytes | None) -> SuiteReport | None:
    return None if data is None else verdict.read_report(data)
