"""``echorl run`` with bad input: exit code 2, one clear line with the field, nothing started, nothing changed."""

import math
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from echorl_core import checkpoints
from echorl_core.attempts import claim_run
from echorl_core.checkpoints import CheckpointManifest, part_of
from echorl_core.names import ExitCode
from echorl_core.rundir import RunDirectory
from echorl_testing.local.local_run import LocalRun, local_run, manifest, terminal, write_model
from echorl_testing.manifests.documents import with_value
from echorl_testing.warm import Program

ECHO = "spec.environments.train.1.echo"
CASES = [
    pytest.param({"spec.maxStep": 5}, "spec.maxStep: unknown key, ", "did you mean maxSteps?", id="unknown key"),
    pytest.param(
        {"spec.weightTransfer": {"mode": "htpp"}}, "spec.weightTransfer.mode: did you mean http?", "htpp", id="enum"
    ),
    pytest.param(
        {"spec.algorithm.batchSize": 18}, "spec.algorithm.batchSize: found 18", "groupSize (4)", id="batchSize"
    ),
    pytest.param(
        {"spec.environments.train": []}, "spec.environments.train: ", "at least one", id="no train environment"
    ),
    pytest.param(
        {"spec.environments.train.1.name": "digits"},
        "spec.environments.train[1].name: ",
        "a name of its own",
        id="same name",
    ),
    pytest.param(
        {"spec.environments.train.0.name": "all"},
        "spec.environments.train[0].name: ",
        "'all' is reserved",
        id="reserved",
    ),
    pytest.param(
        {"spec.algorithm": {"mode": "sft", "teacher": {"url": "http://teacher/v1", "model": "m"}}},
        "spec.environments.train[1].echo: ",
        "mode sft has no ECHO",
        id="sft",
    ),
    pytest.param(
        {"spec.algorithm": {"mode": "opd", "teacher": {"url": "http://teacher/v1", "model": "m"}}},
        "spec.environments.train[1].echo: ",
        "mode opd has no ECHO",
        id="opd",
    ),
    pytest.param(
        {"spec.algorithm.loss": {"type": "custom", "import": "a:b"}},
        "spec.environments.train[1].echo: ",
        "a custom loss has no ECHO term",
        id="echo with a custom loss",
    ),
    pytest.param(
        {f"{ECHO}.tool.alpha": math.nan}, "spec.environments.train[1].echo.tool.alpha: ", "found NaN", id="NaN"
    ),
    pytest.param(
        {f"{ECHO}.tool.alpha": math.inf}, "spec.environments.train[1].echo.tool.alpha: ", "found Infinity", id="inf"
    ),
    pytest.param(
        {f"{ECHO}.tool.toolNames": []},
        "spec.environments.train[1].echo.tool.toolNames: ",
        "found an empty list",
        id="toolNames",
    ),
    pytest.param(
        {"spec.model.name": "/no/such/model"}, "spec.model.name: found /no/such/model", "no such folder", id="model"
    ),
    pytest.param(
        {"spec.model.maxModelLen": 8192, "spec.trainer.seqLen": 8192},
        "spec.model.maxModelLen: found 8192",
        "at most 4096",
        id="maxModelLen",
    ),
    pytest.param(
        {"spec.environments.train.0": {"name": "mine", "type": "import:no_such_module:factory"}},
        "spec.environments.train[0].type: found no_such_module:factory",
        "No module named 'no_such_module'",
        id="import path",
    ),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("bad-input") / "model")


@pytest.fixture
def document(model: Path) -> dict[str, Any]:
    assert terminal()["echo"]["tool"]
    return manifest(model)


def contents(root: Path) -> dict[str, bytes]:
    """Every file of a run directory but the lock, which says who looked last."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def assert_refused(run: LocalRun, *said: str) -> str:
    """Code 2, everything in ``said`` on the first line, no process, and the directory as it was; all that was said."""
    existed, before = run.root.exists(), contents(run.root)
    output = run.markers.with_name("output.log")
    echorl = Program("echorl_cli", run.arguments, environment=run.environment(), output=output)
    assert echorl.ended(240) == ExitCode.BAD_INPUT, output.read_text()
    found = output.read_text()
    for part in said:
        assert part in found.splitlines()[0], found
    assert "Traceback" not in found
    assert run.processes() == []
    assert (run.root.exists(), contents(run.root)) == (existed, before)
    return found


@pytest.mark.parametrize(("changes", "field", "more"), CASES)
def test_bad_manifests(
    document: dict[str, Any], tmp_path: Path, changes: dict[str, Any], field: str, more: str
) -> None:
    for path, value in changes.items():
        document = with_value(document, path, value)
    with local_run(tmp_path, document) as run:
        assert_refused(run, field, more)


def test_a_model_without_a_tokenizer(document: dict[str, Any], model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(model, copy, ignore=shutil.ignore_patterns("tokenizer*"))
    with local_run(tmp_path, with_value(document, "spec.model.name", str(copy))) as run:
        assert_refused(run, f"spec.model.name: found {copy} without a tokenizer")


def test_the_directory_of_another_run(document: dict[str, Any], tmp_path: Path) -> None:
    with local_run(tmp_path, document) as run:
        with_a_checkpoint(run, "another")
        assert_refused(run, "--out: found", "the directory of run 'another'", "accepted: a directory of run 'faults'")


def test_committed_checkpoints_that_must_not_be_resumed_from(document: dict[str, Any], tmp_path: Path) -> None:
    with local_run(tmp_path, with_value(document, "spec.resume", {"policy": "Never"})) as run:
        with_a_checkpoint(run, "faults")
        assert_refused(run, "spec.resume.policy: found", "holds committed checkpoints (steps 2)", "Archive")


def with_a_checkpoint(run: LocalRun, name: str) -> None:
    """Make the run directory that of run ``name``, with a committed checkpoint of step 2."""
    directory = RunDirectory(run.root)
    record = claim_run(directory, name, "uid-of-it")
    folder = directory.checkpoint(2)
    part = folder / "attempt_1" / "trainer" / "__0_0.distcp"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"weights")
    checkpoints.write_manifest(
        folder,
        CheckpointManifest(
            run_uid=record.uid,
            attempt=1,
            step=2,
            policy_version=2,
            num_ranks=1,
            committed_at="2026-01-01T00:00:00Z",
            history=checkpoints.NO_HISTORY,
            parts=[part_of(folder, part, "trainer", 0)],
        ),
    )


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_that_is_taken(document: dict[str, Any], tmp_path: Path, taken_port: int) -> None:
    arguments = ["--master-port", str(taken_port)]
    with local_run(tmp_path, with_value(document, "spec.inference.extraArgs", arguments)) as run:
        assert_refused(run, "spec.inference.extraArgs[0]: found", f"port {taken_port}, which is taken")


def test_all_problems_are_told_at_once(document: dict[str, Any], tmp_path: Path) -> None:
    document = with_value(with_value(document, "spec.maxSteps", -1), "spec.algorithm.batchSize", 18)
    with local_run(tmp_path, document) as run:
        assert "spec.algorithm.batchSize: found 18" in assert_refused(run, "spec.maxSteps: found -1")
