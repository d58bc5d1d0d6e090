from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from echorl_cli.local import lock
from echorl_cli.local.prepare import prepare_command
from echorl_core.attempts import claim_run, read_prepared
from echorl_core.rundir import RunDirectory, write_folder

app = typer.Typer()
app.command()(prepare_command)


@pytest.fixture(autouse=True)
def no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ECHORL_RUN_UID", "ECHORL_RUN_NAME", "ECHORL_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)


def test_it_says_what_it_removed_and_goes_on_with_the_next_attempt(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    claim_run(run, "name", "uid")
    write_folder(run.batch(3), {"seal.json": b"{}"})
    result = CliRunner().invoke(app, ["--run-dir", str(tmp_path)])
    assert (result.exit_code, result.stdout.splitlines()) == (
        0,
        ["removed batches/step_000003", "starting at step 0"],
    )
    assert read_prepared(run, 1) is not None


def test_identity_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ECHORL_RUN_UID": "u", "ECHORL_RUN_NAME": "n", "ECHORL_ATTEMPT": "4"}.items():
        monkeypatch.setenv(name, value)
    assert CliRunner().invoke(app, ["--run-dir", str(tmp_path)]).exit_code == 0
    prepared = read_prepared(RunDirectory(tmp_path), 4)
    assert prepared is not None
    assert prepared.run_uid == "u"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "has no run.json"),
        (["--uid", "u", "--name", "n", "--attempt", "0"], "--attempt: found 0"),
        (["--uid", "u", "--name", "n", "--policy", "FromStep", "--step", "5"], "no committed checkpoint of step 5"),
    ],
)
def test_a_refusal_is_one_message_and_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["--run-dir", str(tmp_path), *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "attempts").exists()


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with lock.held(tmp_path):
        result = CliRunner().invoke(app, ["--run-dir", str(tmp_path), "--uid", "u", "--name", "n"])
    assert result.exit_code == 2
    assert "works in this directory" in result.stderr
