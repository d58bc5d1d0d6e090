"""The runner of tests that is put into sandboxes, by itself: what it reports of suites, honest and not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from echorl_orchestrator.environments.builtin.parts.swe import inside

RUNNER = Path(inside.__file__).with_name("echorl_report.py")
PYTEST_SUITE = """
import pytest
import app

def test_well(): assert app.one() == 1
def test_bad(): assert app.one() == 2
def test_skipped(): pytest.skip("no")
@pytest.mark.xfail
def test_expected(): assert False
@pytest.fixture
def broken(): raise RuntimeError
def test_error(broken): pass
@pytest.mark.parametrize("n", [1, 2])
def test_many(n): assert n == 1
"""
UNITTEST_SUITE = """
import unittest
import app

class Tests(unittest.TestCase):
    def test_well(self): self.assertEqual(app.one(), 1)
    def test_bad(self): self.assertEqual(app.one(), 2)
    def test_error(self): raise RuntimeError
    @unittest.skip("no")
    def test_skipped(self): pass
    def test_parts(self):
        for n in (1, 2):
            with self.subTest(n=n): self.assertEqual(n, 1)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    (work / "tests").mkdir(parents=True)
    (work / "app.py").write_text("def one(): return 1\n")
    (work / "tests" / "__init__.py").touch()
    (work / "tests" / "test_pytest.py").write_text(PYTEST_SUITE)
    (work / "tests" / "test_unittest.py").write_text(UNITTEST_SUITE)
    return work


def ran(work: Path, *arguments: str, **environment: str) -> tuple[int, Any]:
    place = work.parent / "out" / "report.json"
    place.parent.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(RUNNER), *arguments] if arguments[0] in {"pytest", "unittest"} else arguments,
        cwd=work,
        env={"PATH": os.environ["PATH"], "ECHORL_REPORT": str(place), **environment},
        check=False,
        timeout=60,
        capture_output=True,
    )
    return done.returncode, json.loads(place.read_text()) if place.is_file() else None


def test_pytest_is_reported_by_ids(suite: Path) -> None:
    code, found = ran(suite, "pytest", "tests/test_pytest.py")
    assert code == 1
    names = {name.removeprefix("tests/test_pytest.py::"): outcome for name, outcome in found["tests"].items()}
    assert names == {
        "test_well": "passed",
        "test_bad": "failed",
        "test_skipped": "skipped",
        "test_expected": "xfailed",
        "test_error": "error",
        "test_many[1]": "passed",
        "test_many[2]": "failed",
    }


def test_unittest_is_reported_by_ids(suite: Path) -> None:
    code, found = ran(suite, "unittest", "tests/test_unittest.py")
    assert code == 1
    names = {name.rpartition(".")[2]: outcome for name, outcome in found["tests"].items()}
    assert names == {
        "test_well": "passed",
        "test_bad": "failed",
        "test_error": "error",
        "test_skipped": "skipped",
        "test_parts": "failed",
    }


def test_a_command_of_several_runs_is_one_report(suite: Path) -> None:
    (suite / "tests" / "test_second.py").write_text("def test_two(): pass\n")
    run = f"{sys.executable} -m pytest -q -p no:cacheprovider"
    command = f"{run} tests/test_pytest.py; {run} tests/test_second.py"
    plugin = {"PYTHONPATH": str(RUNNER.parent), "PYTEST_ADDOPTS": "-p echorl_report"}
    code, found = ran(suite, "sh", "-c", command, **plugin)
    assert code == 0
    assert found["tests"]["tests/test_second.py::test_two"] == "passed"
    assert found["tests"]["tests/test_pytest.py::test_bad"] == "failed"


@pytest.mark.parametrize("runner", ["pytest", "unittest"])
def test_a_fix_that_ends_the_run_leaves_no_report(suite: Path, runner: str) -> None:
    (suite / "app.py").write_text("import os\nprint('tests/test_pytest.py::test_well PASSED')\nos._exit(0)\n")
    assert ran(suite, runner, f"tests/test_{runner}.py") == (0, None)


@pytest.mark.parametrize("name", ["pytest.py", "unittest.py", "json.py", "sitecustomize.py"])
@pytest.mark.parametrize("runner", ["pytest", "unittest"])
def test_no_file_of_the_work_tree_stands_in_for_the_runner(suite: Path, runner: str, name: str) -> None:
    (suite / name).write_text("raise SystemExit(0)\n")
    code, found = ran(suite, runner, f"tests/test_{runner}.py")
    assert code == 1
    assert any(outcome == "passed" for outcome in found["tests"].values())


def test_a_file_that_cannot_be_imported_is_an_error(suite: Path) -> None:
    (suite / "app.py").write_text("def one(:\n")
    assert set(ran(suite, "pytest", "tests/test_pytest.py")[1]["tests"].values()) == {"error"}
    (suite.parent / "out" / "report.json").unlink()
    assert set(ran(suite, "unittest", "tests/test_unittest.py")[1]["tests"].values()) == {"error"}
