"""``echorl plot``: what it refuses, and what it draws of runs with little to draw."""

import json

import pytest
from typer.testing import CliRunner

from echorl_cli.__main__ import app_for


def plot(*arguments):
    arguments = ["plot", *map(str, arguments)]
    return CliRunner().invoke(app_for(arguments), arguments, prog_name="echorl")


@pytest.fixture
def records(tmp_path):
    folder = tmp_path / "run" / "records" / "attempt_1"
    folder.mkdir(parents=True)
    (folder / "steps.jsonl").write_text(json.dumps({"step": 1, "attempt": 1, "reward/all/mean": None}) + "\n")
    return folder


def test_one_step_without_a_reward(records, tmp_path):
    result = plot(tmp_path / "run")
    assert (result.exit_code, result.stdout) == (0, f"8 pictures in {tmp_path / 'run' / 'plots'}\n")


def test_a_record_that_was_not_copied_whole_is_named(records, tmp_path):
    (records / "evals.jsonl").write_text('{"step": 1\n')
    result = plot(tmp_path / "run")
    accepted = "accepted: records as the orchestrator wrote them"
    assert (result.exit_code, result.stderr) == (
        2,
        f"{records / 'evals.jsonl'}: found no record in line 1; {accepted}\n",
    )


def test_a_folder_that_cannot_be_written(records, tmp_path):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "out"
    result = plot(tmp_path / "run", "--out", out)
    assert (result.exit_code, result.stderr) == (
        2,
        f"--out: found {out}: Not a directory; accepted: a folder that can be written\n",
    )
