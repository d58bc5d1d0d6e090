"""Repositories made from a seed, by running them."""

import subprocess
import sys
from pathlib import Path

import pytest

from echorl_orchestrator.environments.builtin.parts.swe.bugs import FUNCTIONS, Function
from echorl_orchestrator.environments.builtin.parts.swe.seeded import SeededArgs, bug_of, seeded_rows
from echorl_orchestrator.environments.loader import load_environment
from echorl_orchestrator.failures import BadInputError


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
def test_every_case_of_a_function_shows_each_of_its_bugs(function: Function) -> None:
    names = [name.strip() for name in function.arguments.split(",")]
    for arguments, value in function.cases:
        known = dict(zip(names, arguments, strict=True))
        assert eval(function.right, {}, known) == value
        for _, wrong in function.wrong:
            assert eval(wrong, {}, known) != value, wrong


def test_the_same_arguments_make_the_same_rows_and_splits_share_none() -> None:
    train = seeded_rows(SeededArgs(num_tasks=200))
    assert train == seeded_rows(SeededArgs(num_tasks=200))
    keys = {row.key for row in train}
    assert len(keys) == 200
    other = {row.key for seed in range(5) for row in seeded_rows(SeededArgs(num_tasks=100, seed=seed, split="test"))}
    assert keys.isdisjoint(other)


def test_families_narrow_what_can_be_wrong() -> None:
    rows = seeded_rows(SeededArgs(num_tasks=20, families=["order"]))
    assert {row.key.split("-")[1] for row in rows} == {"sub", "div"}


def test_as_many_as_there_are_and_no_more() -> None:
    with pytest.raises(BadInputError, match=r"num_tasks is 4096, but only about \d+ different tasks exist"):
        load_environment("swe", "builtin:swe", {"seeded": {"num_tasks": 4096, "functions": 1, "families": ["order"]}})


def test_tests_fail_in_the_repository_and_pass_with_the_gold_patch(tmp_path: Path) -> None:
    for number, row in enumerate(seeded_rows(SeededArgs(num_tasks=4, functions=3))):
        work = tmp_path / str(number)
        for path, data in row.files.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_bytes(data)
        run = [sys.executable, "-B", "-m", "unittest", "-q"]  # files change within the second and keep their size
        assert subprocess.run(run, cwd=work, check=False, capture_output=True).returncode != 0
        bug = bug_of(row)
        assert (work / bug.path).read_text().splitlines()[bug.line - 1] == bug.wrong
        assert row.gold is not None
        subprocess.run(["git", "apply", "-"], cwd=work, input=row.gold, check=True)
        for path, data in row.test_files.items():
            (work / path).write_bytes(data)
        assert subprocess.run(run, cwd=work, check=False, capture_output=True).returncode == 0
        assert (work / bug.path).read_text().splitlines()[bug.line - 1] == bug.right
