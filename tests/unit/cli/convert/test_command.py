"""``echorl convert`` as a user calls it."""

import os
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from echorl_cli.__main__ import app_for

FILES = Path(__file__).parent / "files"
TYPE = ("--environment", "acme/sums=builtin:digits")


def call(*arguments):
    arguments = [str(argument) for argument in arguments]
    return CliRunner().invoke(app_for(arguments), arguments, prog_name="echorl")


@pytest.fixture
def small(tmp_path):
    file = tmp_path / "rl.toml"
    file.write_text('max_steps = 3\n[[orchestrator.env]]\nid = "acme/sums"\n[trainer.model]\nattn = "sdpa"\n')
    return file


def test_the_manifest_goes_to_stdout_and_the_lines_to_stderr():
    types = [f"{name}=import:ours.code:{name.replace('-', '_')}" for name in ("words", "words-held-out")]
    options = [word for kind in types for word in ("--environment", kind)]
    result = call("convert", "prime-rl", "@", FILES / "early.toml", *options)
    assert result.exit_code == 0
    comments = [line for line in result.stdout.splitlines() if line.startswith("#")]
    assert yaml.safe_load(result.stdout) == yaml.safe_load((FILES / "early.yaml").read_text(encoding="utf-8"))
    assert len(comments) == len(result.stderr.splitlines()) + 1
    assert "orchestrator.env[0].args.judge_api_key = (hidden): no counterpart: " in result.stderr
    assert "made-up-and-kept-out" not in result.output


@pytest.mark.parametrize("words", [["@", "F", "@", "G"], ["F", "G"], ["@F", "@G"]], ids=["spaced", "plain", "joined"])
def test_layers_with_and_without_signs(small, tmp_path, words):
    over = tmp_path / "over.toml"
    over.write_text("max_steps = 9\n")
    named = [word.replace("F", str(small)).replace("G", str(over)) for word in words]
    assert yaml.safe_load(call("convert", "prime-rl", *named, *TYPE).stdout)["spec"]["maxSteps"] == 9


def test_a_file_for_one_section_goes_over_the_others(small, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text("[optim]\nlr = 5e-6\n")
    result = call("convert", "prime-rl", small, "--trainer", mine, *TYPE)
    assert yaml.safe_load(result.stdout)["spec"]["trainer"]["optimizer"]["lr"] == 5e-6


def test_with_a_type_for_its_environment_the_manifest_is_valid(small, tmp_path):
    out = tmp_path / "run.yaml"
    result = call("convert", "prime-rl", small, *TYPE, "--name", "sums", "--out", out)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.endswith(f"{out}: run sums; 1 no counterpart, 9 default, 3 to fill in\n")
    assert call("validate", out).stdout == f"{out}: valid, run sums\n"


def test_without_a_type_its_environment_is_one_of_verifiers(small, tmp_path):
    out = tmp_path / "run.yaml"
    result = call("convert", "prime-rl", small, "--out", out)
    assert result.exit_code == 0
    [one] = yaml.safe_load(out.read_text())["spec"]["environments"]["train"]
    assert (one["name"], one["type"]) == ("sums", "verifiers:acme/sums")
    assert "spec.orchestrator.image: to fill in: in a cluster: an image that has verifiers" in result.stderr
    assert call("validate", out).exit_code == 0


def test_a_refusal_writes_nothing(small, tmp_path):
    out = tmp_path / "run.yaml"
    out.write_text("mine")
    small.write_text(small.read_text() + "zzz = 1\n")
    result = call("convert", "prime-rl", small, "--out", out, *TYPE)
    assert (result.exit_code, result.stdout, out.read_text()) == (2, "", "mine")
    assert result.stderr.splitlines()[-1] == "1 problem; nothing is written"
    assert call("convert", "prime-rl", small, "--out", out, "--keep-going", *TYPE).exit_code == 0
    assert out.read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "FILE: found no file; accepted: the TOML files of a run, base first"),
        (["x.toml", "--trainer", "@"], "--trainer, --orchestrator, --inference: found '@'; accepted: the file itself"),
        (
            ["x.toml", "--environment", "sums"],
            "--environment: found 'sums'; accepted: NAME=TYPE, such as reverse-text=",
        ),
    ],
)
def test_bad_arguments(arguments, message):
    result = call("convert", "prime-rl", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(message)


def test_an_out_that_cannot_be_written(small, tmp_path):
    (tmp_path / "file").write_text("")
    result = call("convert", "prime-rl", small, "--out", tmp_path / "file" / "run.yaml", *TYPE)
    assert result.exit_code == 2
    assert result.stderr.startswith("--out: found ")


@pytest.mark.parametrize("kind", ["a link", "a pipe", "a folder", "a file that is read"])
def test_an_out_that_must_not_be_replaced(kind, small, tmp_path):
    out = small if kind.endswith("read") else tmp_path / "out.yaml"
    make = {"a link": lambda path: path.symlink_to(small), "a pipe": os.mkfifo, "a folder": os.mkdir}
    make.get(kind, str)(out)
    before, text = out.lstat(), small.read_text()
    result = call("convert", "prime-rl", small, "--out", out)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("--out: found ")
    assert (out.lstat().st_ino, out.lstat().st_mode, small.read_text()) == (before.st_ino, before.st_mode, text)


def test_another_system(small):
    result = call("convert", "someone-else", small)
    assert result.exit_code == 2
    assert "prime-rl" in result.stderr


def test_keys_and_values_stay_on_one_line(small):
    small.write_text(small.read_text() + 'rope_theta = "a\\nb\\u2028c\\u001b[31m"\n')
    result = call("convert", "prime-rl", small, "--keep-going", *TYPE)
    assert result.exit_code == 0
    [line] = [line for line in result.stdout.splitlines() if "rope_theta" in line]
    assert line == '# trainer.model.rope_theta = "a\\nb\\u2028c\\u001b[31m": no counterpart: unknown key'
    assert yaml.safe_load(result.stdout)["kind"] == "EchoRLRun"
