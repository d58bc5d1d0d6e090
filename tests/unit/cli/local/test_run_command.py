import json
import os
import sys
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from echorl_cli.local import lock
from echorl_cli.local.machine import Machine
from echorl_cli.local.run import local_run, run_command
from echorl_core.attempts import OnExisting, Policy, claim_run, read_run
from echorl_core.names import Role
from echorl_core.restarts import Rule, RuleAction
from echorl_core.rundir import RunDirectory
from echorl_manifest import load
from echorl_testing.manifests import documents

app = typer.Typer()
app.command()(run_command)


@pytest.fixture
def document(tmp_path: Path) -> dict:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 1024}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return documents.with_value(documents.shortest(), "spec.model.name", str(folder))


def invoke(tmp_path: Path, document: dict, *arguments: str):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(document))
    return CliRunner().invoke(app, [str(file), "--out", str(tmp_path / "out"), *arguments])


def test_bad_input_tells_everything_starts_nothing_and_leaves_nothing(tmp_path: Path, document: dict) -> None:
    document = documents.with_value(document, "spec.environments.train.0.type", "import:absent:x")
    result = invoke(tmp_path, document, "--set", "spec.model.maxModelLen=4096")
    assert result.exit_code == 2
    assert "spec.model.maxModelLen: found 4096" in result.stderr
    assert "spec.environments.train[0].type: found absent:x" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_wrong_manifest_is_refused_before_anything_else(tmp_path: Path, document: dict) -> None:
    result = invoke(tmp_path, {**document, "kind": "EchoRun"})
    assert result.exit_code == 2
    assert "EchoRLRun" in result.stderr


def test_a_directory_in_use_is_refused(tmp_path: Path, document: dict) -> None:
    with lock.held(tmp_path / "out"):
        result = invoke(tmp_path, document)
    assert result.exit_code == 2
    assert "another `echorl run`" in result.stderr


@pytest.mark.parametrize("kind", ["link", "folder", "fifo"])
def test_what_stands_in_the_locks_place_is_refused_and_left_as_it_is(tmp_path: Path, document: dict, kind: str) -> None:
    lock_file, precious = tmp_path / "out" / ".lock", tmp_path / "precious"
    lock_file.parent.mkdir()
    precious.write_text("mine")
    {"link": lambda: lock_file.symlink_to(precious), "folder": lock_file.mkdir, "fifo": lambda: os.mkfifo(lock_file)}[
        kind
    ]()
    result = invoke(tmp_path, document)
    assert result.exit_code == 2
    assert f"{lock_file}: found something that is no file" in result.stderr
    assert precious.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("file", "--out: found a file, "),
        ("file/x", "Not a directory"),
        ("loop", "Too many levels of symbolic links"),
        ("nowhere", "--out: found a link to nothing"),
        ("x" * 300, "File name too long"),
        ("/dev/null", "--out: found a device"),
        ("/sys/kernel/x", "--out: found /sys/kernel/x: "),
        ("", "found an empty name"),
    ],
)
def test_a_folder_that_cannot_be_is_told(tmp_path: Path, document: dict, name: str, found: str) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "nowhere").symlink_to(tmp_path / "nothing")
    out = str(tmp_path / name) if name else ""
    result = invoke(tmp_path, document, "--out", out)
    assert (result.exit_code, isinstance(result.exception, SystemExit)) == (2, True)
    assert found in result.stderr
    assert "accepted: " in result.stderr
    assert (tmp_path / "file").read_text() == "precious"


def test_a_run_is_resolved_and_keeps_its_uid(tmp_path: Path, document: dict) -> None:
    rules = [{"role": "inference", "exitCodes": [1, 137], "action": "Fail"}]
    policy = {"maxRestarts": 7, "backoffSeconds": 1, "rules": rules}
    document = documents.with_value(document, "spec.failurePolicy", policy)
    document = documents.with_value(document, "spec.stallPolicy", {"noStepFor": "5m"})
    root, machine = tmp_path / "out", Machine(sys.executable, Path(sys.executable), ())
    first = local_run(load(document), root, machine)
    again = local_run(load(document), root, machine)
    assert first.uid == again.uid
    assert (first.restart_policy.max_restarts, first.restart_policy.backoff_s) == (7, 1)
    assert first.rules == [Rule(Role.INFERENCE, frozenset({1, 137}), RuleAction.FAIL)]
    assert (first.limits.no_step, first.limits.unhealthy, first.limits.engine_unhealthy) == (300, 300, 60)
    assert load(yaml.safe_load((root / "manifest.yaml").read_text())).metadata.name == "shortest"
    assert first.commands.trainer(Path("c.json"))[1:] == ["-P", "-m", "echorl_trainer", "--config", "c.json"]
    engine = first.commands.inference(Path("c.json"), Path("work"))
    assert engine[1:] == ["-P", "-m", "echorl_vllm", "--config", "c.json", "--work", "work"]
    assert first.health_url(Role.TRAINER, 0) == f"http://127.0.0.1:{first.configs.trainer.metrics_port}/healthz"


def test_an_older_run_is_moved_aside_when_the_manifest_says_so(tmp_path: Path, document: dict) -> None:
    root, machine = tmp_path / "out", Machine(sys.executable, Path(sys.executable), ())
    claim_run(RunDirectory(root), "older", "old-uid")
    document = documents.with_value(document, "spec.resume", {"policy": "Never", "onExisting": "Archive"})
    plan = local_run(load(document), root, machine)
    record = read_run(RunDirectory(root))
    assert record is not None
    assert (record.name, record.uid) == ("shortest", plan.uid)
    assert (root / "archive" / "old-uid" / "run.json").exists()
    assert (plan.resume, plan.on_existing) == (Policy.NEVER, OnExisting.ARCHIVE)
