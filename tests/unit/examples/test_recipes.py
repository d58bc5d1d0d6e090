"""The recipes for real models are valid and fit by the arithmetic, and their environment scores as it says."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echorl_cli.__main__ import app_for
from echorl_testing.manifests.model_configs import QWEN3_8B, QWEN3_30B_A3B
from examples.gsm8k.gsm8k import build, number, reward, rows

EXAMPLES = Path(__file__).parents[3] / "examples"
ROW = {"question": "Two and two?", "answer": "2 + 2 = <<2+2=4>>4\n#### 1,004"}


@pytest.mark.parametrize(("name", "config"), [("qwen3-8b-gsm8k", QWEN3_8B), ("qwen3-30b-a3b", QWEN3_30B_A3B)])
def test_a_recipe_is_valid_and_fits_its_gpus(name, config, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    file = str(EXAMPLES / f"{name}.yaml")
    (tmp_path / "config.json").write_text(json.dumps(config))
    for arguments in (["validate", file], ["plan", file, "--set", f"model.name={tmp_path}"]):
        told = CliRunner().invoke(app_for(arguments), arguments, prog_name="echorl")
        assert told.exit_code == 0, told.output
    assert told.stdout.count(": fits") == 2
    assert "does not fit" not in told.stdout


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,004", 1004.0), (" $3.50 ", 3.5), ("-7 km", -7.0), ("four", None), ("1 or 2", None), ("", None)],
)
def test_numbers_are_read_with_what_stands_around_them(text, value):
    assert number(text) == value


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        (r"so it is \boxed{1004}", 1.0),
        (r"\boxed{3}, no, \boxed{\$1,004}", 1.0),
        (r"\boxed{1004} or \boxed{3}", 0.0),
        ("1004", 0.0),
        (r"\boxed{}", 0.0),
    ],
)
def test_the_last_boxed_number_counts(answer, worth):
    assert reward(answer, 1004.0) == worth


def test_tasks_are_the_rows_of_the_file(tmp_path):
    data = tmp_path / "train.jsonl"
    data.write_text(f"{json.dumps(ROW)}\n" * 2)
    assert len(build(str(data)).tasks) == 2
    assert rows(data)[1] == {"key": 2, "question": "Two and two?", "wanted": 1004.0}
    data.write_text(json.dumps(ROW | {"answer": "four"}))
    with pytest.raises(ValueError, match=r"train\.jsonl:1: accepted is a row with question"):
        build(str(data))
