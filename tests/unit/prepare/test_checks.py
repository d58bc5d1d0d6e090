import os
import sys
from pathlib import Path

import pytest

from echorl_core import checkpoints
from echorl_core.checkpoints import CheckpointManifest
from echorl_core.config import (
    AdvantageConfig,
    EchoConfig,
    EchoRoleConfig,
    EnvironmentConfig,
    EvalConfig,
    FilterConfig,
    HookConfig,
    LossConfig,
    TrainerConfig,
)
from echorl_core.rundir import RunDirectory
from echorl_core.start_checks import import_problems
from echorl_core.wire.reports import Part
from echorl_prepare.checks import free_bytes, imports, room_problems, trainer_imports, volume_problems
from echorl_testing.manifests.role_config import orchestrator_config

GB = 10**9


def test_a_good_volume_keeps_nothing_of_the_check(tmp_path: Path) -> None:
    root = tmp_path / "runs" / "new"
    assert list(volume_problems(root)) == []
    assert list(root.iterdir()) == []


def test_a_folder_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    [problem] = volume_problems(tmp_path / "runs" / "new")
    assert str(problem).startswith(f"spec.storage: found {tmp_path}/runs/new: ")


def test_a_volume_that_takes_no_files() -> None:
    [problem] = volume_problems(Path("/proc/runs"))
    assert f"accepted: a volume that user {os.getuid()} may write, with rename and fsync" in str(problem)


def test_every_function_of_the_manifest_is_known_by_its_field(tmp_path: Path) -> None:
    echo = EchoConfig(tool=EchoRoleConfig(alpha=0.1), filter=HookConfig(import_path="mine:keep"))
    train = [
        EnvironmentConfig(name="a", type="builtin:digits", echo=echo),
        EnvironmentConfig(name="b", type="import:mine.env:make"),
    ]
    held_out = EnvironmentConfig(name="c", type="import:mine.env:test")
    evals = [EvalConfig(environment=held_out, interval=1, num_examples=1, group_size=1)]
    assert imports(orchestrator_config(tmp_path, train=train, evals=evals)) == {
        "spec.environments.train[0].echo.filter.import": "mine:keep",
        "spec.environments.train[1].type": "mine.env:make",
        "spec.environments.eval[0].type": "mine.env:test",
    }


def test_a_custom_advantage_is_tried(tmp_path: Path) -> None:
    config = orchestrator_config(tmp_path, train=[EnvironmentConfig(name="a", type="builtin:digits")])
    own = AdvantageConfig(type="custom", hook=HookConfig(import_path="mine:best"))
    batch = config.batch.model_copy(update={"advantage": own})
    assert imports(config.model_copy(update={"batch": batch})) == {"spec.algorithm.advantage.import": "mine:best"}


def test_custom_filters_are_tried(tmp_path: Path) -> None:
    config = orchestrator_config(tmp_path, train=[EnvironmentConfig(name="a", type="builtin:digits")])
    rules = [FilterConfig(type="gibberish"), FilterConfig(type="custom", hook=HookConfig(import_path="mine:poor"))]
    batch = config.batch.model_copy(update={"filters": rules})
    assert imports(config.model_copy(update={"batch": batch})) == {"spec.algorithm.filters[1].import": "mine:poor"}


def test_a_custom_loss_is_one_of_the_trainers_imports() -> None:
    config = TrainerConfig.model_construct(loss=LossConfig(type="custom", hook=HookConfig(import_path="mine:loss")))
    assert trainer_imports(config) == {"spec.algorithm.loss.import": "mine:loss"}
    assert trainer_imports(TrainerConfig.model_construct(loss=LossConfig())) == {}


def test_what_only_the_trainer_has_is_not_missed(tmp_path: Path) -> None:
    """A module that needs it is taken for good as far as it goes; every other mistake in it is found."""
    (tmp_path / "good.py").write_text("import only_in_the_trainer.nn\n")
    (tmp_path / "bad.py").write_text("import absent_everywhere\nimport only_in_the_trainer\n")
    (tmp_path / "wrong.py").write_text("def loss(:\n")
    wanted = {name: f"{name}:loss" for name in ("good", "bad", "wrong", "gone")}
    found = {
        one.path: one.found
        for one in import_problems(wanted, [str(tmp_path)], sys.executable, elsewhere=["only_in_the_trainer"])
    }
    assert sorted(found) == ["bad", "gone", "wrong"]
    assert "SyntaxError" in found["wrong"]
    assert "absent_everywhere" in found["bad"]
    assert "No module named 'gone'" in found["gone"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("a.safetensors", "b.safetensors"):
        with (folder / name).open("wb") as file:
            file.truncate(GB)  # sparse
    return folder


@pytest.mark.parametrize(("free", "copies", "needed"), [(4, 0, None), (3, 0, "4 GB"), (7, 2, "8 GB"), (8, 2, None)])
def test_room_for_the_first_checkpoint(tmp_path: Path, model: Path, free: int, copies: int, needed: str | None) -> None:
    found = [str(one) for one in room_problems(RunDirectory(tmp_path), model, free * GB, copies=copies)]
    expected = (
        f"spec.storage: found {tmp_path} with {free} GB free; accepted: at least {needed} free, for the next checkpoint"
    )
    assert found == ([] if needed is None else [expected])


def test_room_for_one_more_checkpoint_like_the_last(tmp_path: Path, model: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    part = Part(role="trainer", rank=0, file="x", size=20 * GB, sha256="")
    manifest = CheckpointManifest(
        run_uid="uid",
        attempt=1,
        step=2,
        policy_version=2,
        num_ranks=1,
        committed_at="2026-01-01T00:00:00+00:00",
        history=checkpoints.NO_HISTORY,
        parts=[part],
    )
    checkpoints.write_manifest(run.checkpoint(2), manifest)
    assert list(room_problems(run, model, 20 * GB, copies=0)) == []
    [problem] = room_problems(run, model, 19 * GB, copies=0)
    assert "at least 20 GB free" in str(problem)


def test_free_space_is_told(tmp_path: Path) -> None:
    assert (free_bytes(tmp_path) or 0) > 0
