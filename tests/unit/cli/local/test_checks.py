import json
import shutil
import socket
import sys
from pathlib import Path

import pytest

from echorl_cli.local.checks import all_problems
from echorl_cli.local.machine import Machine
from echorl_core import checkpoints
from echorl_core.adapters import zero_adapter
from echorl_core.attempts import claim_run
from echorl_core.checkpoints import CheckpointManifest
from echorl_core.rundir import RunDirectory
from echorl_manifest import load
from echorl_testing.manifests import documents


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 1024}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def with_layers(model: Path) -> None:
    """Give the model two transformer layers with two linear layers each."""
    tensors = {}
    for index in (0, 1):
        tensors[f"model.layers.{index}.self_attn.q_proj.weight"] = (4, 2)
        tensors[f"model.layers.{index}.mlp.up_proj.weight"] = (2, 1)
    (model / "model.safetensors").write_bytes(zero_adapter(tensors, "float32"))


@pytest.fixture
def problems(tmp_path: Path, model: Path):
    """Texts of all problems of the shortest manifest after changes."""

    def find(root: Path | None = None, *, machine: Machine | None = None, **values) -> list[str]:
        document = documents.with_value(documents.shortest(), "spec.model.name", str(model))
        for path, value in values.items():
            document = documents.with_value(document, path.replace("__", "."), value)
        machine = machine or Machine(sys.executable, Path(sys.executable), ())
        found = all_problems(load(document), root or tmp_path / "run", machine, {"HF_HOME": str(tmp_path)})
        return [str(problem) for problem in found]

    return find


def commit(root: Path, step: int = 2, uid: str = "uid") -> None:
    manifest = CheckpointManifest(
        run_uid=uid,
        attempt=1,
        step=step,
        policy_version=step,
        num_ranks=1,
        committed_at="2026-01-01T00:00:00Z",
        history=checkpoints.NO_HISTORY,
        parts=[],
    )
    checkpoints.write_manifest(RunDirectory(root).checkpoint(step), manifest)


def test_a_good_start_has_no_problems_and_leaves_no_trace(problems, tmp_path: Path) -> None:
    assert problems() == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("config.json", "without config.json"),
        ("tokenizer.json", "without a tokenizer"),
        ("model.safetensors", "safetensors"),
    ],
)
def test_a_model_without_one_of_its_parts(problems, model: Path, removed: str, message: str) -> None:
    (model / removed).unlink()
    [problem] = problems()
    assert problem.startswith("spec.model.name: found ")
    assert message in problem


def test_a_model_with_a_missing_shard(problems, model: Path) -> None:
    weights = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(weights))
    (model / "one.safetensors").touch()
    [problem] = problems()
    assert "without two.safetensors" in problem


def test_a_missing_model(problems) -> None:
    [problem] = problems(spec__model__name="./nowhere")
    assert "spec.model.name" in problem
    assert "./nowhere: no such folder" in problem


def test_a_sequence_longer_than_the_models(problems) -> None:
    [problem] = problems(spec__model__maxModelLen=2048)
    assert problem == (
        "spec.model.maxModelLen: found 2048; accepted: at most 1024 (max_position_embeddings of the model)"
    )


def test_the_directory_of_another_run(problems, tmp_path: Path) -> None:
    claim_run(RunDirectory(tmp_path / "run"), "another", "uid")
    [problem] = problems()
    assert "the directory of run 'another'" in problem
    assert problems(metadata__name="another") == []


def test_checkpoints_without_run_json_are_another_runs(problems, tmp_path: Path) -> None:
    commit(tmp_path / "run")
    [problem] = problems()
    assert "belongs to run uid" in problem


def test_committed_checkpoints_and_never(problems, tmp_path: Path) -> None:
    claim_run(RunDirectory(tmp_path / "run"), "shortest", "uid")
    commit(tmp_path / "run")
    assert problems() == []
    [problem] = problems(spec__resume__policy="Never")
    assert "holds committed checkpoints (steps 2), and resume.policy is Never" in problem
    assert problems(spec__resume__policy="Never", spec__resume__onExisting="Archive") == []


def test_a_folder_that_is_no_run_directory(problems, tmp_path: Path) -> None:
    root = tmp_path / "run"
    (root / "batches").mkdir(parents=True)
    assert problems() == []
    (root / "records" / "attempt_1").mkdir(parents=True)
    [problem] = problems()
    assert "which holds records and no run.json" in problem
    shutil.rmtree(root / "records")
    (root / "thesis.tex").touch()
    [problem] = problems()
    assert "which holds thesis.tex and no run.json" in problem
    [problem] = problems(root / "thesis.tex")
    assert "which is no folder" in problem


def test_a_missing_inference_environment(problems, tmp_path: Path) -> None:
    [problem] = problems(machine=Machine(sys.executable, tmp_path / "python", ()))
    assert problem.startswith(f"inference environment: found no {tmp_path / 'python'}")


def test_sandboxes_without_bubblewrap(problems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert problems() == []
    (problem,) = problems(spec__sandboxes={})
    assert problem.startswith("spec.sandboxes.provider: found process, and no bwrap")
    assert "package bubblewrap" in problem


def test_more_ranks_than_gpus(problems) -> None:
    [problem] = problems(machine=Machine(sys.executable, Path(sys.executable), ("0",)), spec__trainer__replicas=2)
    assert "2 ranks; accepted: at most one for each of the 1 GPUs" in problem


def test_a_port_that_is_taken(problems) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        [problem] = problems(spec__inference__extraArgs=["--master-port", str(port)])
        assert f"spec.inference.extraArgs[0]: found port {port}, which is taken" in problem
        [problem] = problems(spec__inference__extraArgs=[f"--master-port={port}"])
        assert "which is taken" in problem


def test_import_paths_are_tried_with_the_users_folder(problems, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text("def factory(): ...\nnumber = 3\nclass Inner:\n    def make(): ...\n")
    (code / "broken.py").write_text("raise ValueError('no')\n")
    path = "spec__environments__train__0__type"
    assert problems(**{path: "import:mine:factory", "spec__code__path": str(code)}) == []
    for name, message in {
        "mine:missing": "has no attribute 'missing'",
        "mine:number": "cannot be called",
        "broken:factory": "ValueError: no",
        "absent.module:factory": "No module named 'absent'",
    }.items():
        [problem] = problems(**{path: f"import:{name}", "spec__code__path": str(code)})
        assert problem.startswith(f"spec.environments.train[0].type: found {name}: ")
        assert message in problem


def test_a_custom_loss_is_tried_too(problems) -> None:
    [problem] = problems(spec__algorithm__loss={"type": "custom", "import": "absent.losses:mine"})
    assert str(problem).startswith("spec.algorithm.loss.import: found absent.losses:mine: ModuleNotFoundError")


def test_a_custom_filter_is_tried_too(problems) -> None:
    rules = [{"type": "gibberish"}, {"type": "custom", "import": "absent.filters:poor"}]
    [problem] = problems(spec__algorithm__filters=rules)
    assert str(problem).startswith("spec.algorithm.filters[1].import: found absent.filters:poor: ModuleNotFoundError")


def test_modules_of_the_working_folder_do_not_count(problems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "near.py").write_text("def factory(): ...\n")
    monkeypatch.chdir(tmp_path)
    [problem] = problems(spec__environments__train__0__type="import:near:factory")
    assert "No module named 'near'" in problem


def test_a_module_that_ends_python(problems, tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("import os\nos._exit(5)\n")
    [problem] = problems(spec__environments__train__0__type="import:leaves:factory", spec__code__path=str(tmp_path))
    assert "ended Python with code 5" in problem


def test_all_problems_are_told_at_once(problems, model: Path, tmp_path: Path) -> None:
    (model / "tokenizer.json").unlink()
    claim_run(RunDirectory(tmp_path / "run"), "another", "uid")
    found = problems(spec__model__maxModelLen=4096, spec__environments__train__0__type="import:absent:x")
    assert len(found) == 4


def test_ranks_that_share_packs_must_divide_the_heads(problems, model: Path) -> None:
    with_layers(model)
    described = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**described, "num_attention_heads": 6}))
    shared = {"spec__trainer__replicas": 4, "spec__trainer__gpusPerReplica": 0}
    assert problems(**shared, spec__trainer__parallel={"context": 2}) == []
    accepted = "a divisor of the model's 6 attention heads"
    assert problems(**shared, spec__trainer__parallel={"context": 4}) == [
        f"spec.trainer.parallel.context: found 4; accepted: {accepted}"
    ]


def test_ranks_that_split_experts_must_divide_their_number(problems, model: Path) -> None:
    with_layers(model)
    described = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**described, "num_experts": 6}))
    ranks = {"spec__trainer__replicas": 4, "spec__trainer__gpusPerReplica": 0}
    assert problems(**ranks, spec__trainer__parallel={"expert": 2}) == []
    accepted = "a divisor of the model's 6 experts"
    assert problems(**ranks, spec__trainer__parallel={"expert": 4}) == [
        f"spec.trainer.parallel.expert: found 4; accepted: {accepted}"
    ]


def test_targets_of_an_adapter_that_the_model_has_not(problems, model: Path) -> None:
    with_layers(model)
    lora = "spec__model__lora"
    assert problems(**{lora: {"targetModules": ["q_proj", "model.layers.1.self_attn.q_proj"]}}) == []
    accepted = "names of linear layers: q_proj, up_proj, or a whole name such as model.layers.0.mlp.up_proj"
    expected = f'spec.model.lora.targetModules: found "o_proj"; accepted: {accepted}'
    assert problems(**{lora: {"targetModules": ["q_proj", "o_proj"]}}) == [expected]
    (model / "model.safetensors").write_bytes(b"no header")
    (problem,) = problems(**{lora: {}})
    assert problem.startswith(f"spec.model.name: found {model}: {model}/model.safetensors: not a safetensors file")
