"""An engine's adapter on its disk, and what is staged in its place, without vLLM."""

import hashlib
import json

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from echorl_core.config import LoraConfig, ModelConfig
from echorl_core.wire.engine import StageRequest
from echorl_core.wire.weights import PolicyId, WeightFile, WeightManifest
from echorl_testing.engines.published import tensor_info
from echorl_trainer.seeded import SeededShape, write_seeded_model
from echorl_vllm.adapter import install, write_start_adapter
from echorl_vllm.validation import adapter_form
from echorl_vllm.weights import WorkerWeights

SHAPE = SeededShape(hidden_size=32, intermediate_size=64, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16)
LORA = LoraConfig(rank=4, alpha=8.0, target_modules=["q_proj", "model.layers.1.mlp.down_proj"])
A = "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"
MODULES = ("layers.0.self_attn.q_proj", "layers.1.self_attn.q_proj", "layers.1.mlp.down_proj")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "m"
    write_seeded_model(folder, SHAPE, 0)
    return folder


def model_config(model, lora=LORA, dtype="float32"):
    return ModelConfig(path=str(model), dtype=dtype, max_model_len=64, renderer="engine", lora=lora)


@pytest.fixture
def worker(model, tmp_path, monkeypatch):
    monkeypatch.setenv("ECHORL_ENGINE_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("ECHORL_RUN_UID", "uid")
    write_start_adapter(tmp_path / "adapter", model_config(model))
    return WorkerWeights(
        form=lambda: adapter_form(tmp_path / "adapter"),
        load=lambda staged: install(staged.folder, tmp_path / "adapter"),
    )


def published(folder, start, *, change=None, config=None, kind="adapter", names=None):
    """A version beside the adapter that the engine started with: its tensors plus one. Returns the stage request."""
    folder.mkdir()
    tensors = {name: tensor + 1 for name, tensor in load_file(start / "adapter_model.safetensors").items()}
    if change is not None:
        change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")
    described = json.loads((start / "adapter_config.json").read_text()) | (config or {})
    (folder / "adapter_config.json").write_text(json.dumps(described))
    manifest = WeightManifest(
        run_uid="uid",
        attempt=1,
        version=1,
        kind=kind,
        files=[
            WeightFile(name=name, size=(folder / name).stat().st_size)
            for name in names or ("adapter_model.safetensors", "adapter_config.json")
        ],
        tensors={name: tensor_info(tensor, "adapter_model.safetensors") for name, tensor in tensors.items()},
    )
    data = msgspec.json.encode(manifest)
    (folder / "manifest.json").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    return StageRequest(attempt=1, version=1, url=f"file://{folder}/manifest.json", digest=digest, deadline_s=90.0)


def settled(worker, request):
    worker.stager.stage(request)
    while (status := worker.stager.status()).state == "staging":
        pass
    return status


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_start_adapter_is_zeros_in_the_form_of_the_model(model, tmp_path, dtype):
    write_start_adapter(tmp_path / "adapter", model_config(model, dtype=dtype))
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    expected = {f"base_model.model.model.{module}.lora_{letter}.weight" for module in MODULES for letter in "AB"}
    assert tensors.keys() == expected
    assert tensors[A].shape == (4, 64)
    assert tensors[A.replace("lora_A", "lora_B")].shape == (32, 4)
    assert all(tensor.dtype == getattr(torch, dtype) and not tensor.any() for tensor in tensors.values())
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (4, 8, sorted(LORA.target_modules))


def test_a_target_that_the_model_has_not_is_refused_before_the_engine_starts(model, tmp_path):
    lora = LORA.model_copy(update={"target_modules": ["q_proj", "fc1"]})
    with pytest.raises(ValueError, match=r"model\.lora\.target_modules: found 'fc1', accepted are names of linear"):
        write_start_adapter(tmp_path / "adapter", model_config(model, lora))
    assert not (tmp_path / "adapter").exists()


def test_what_was_applied_lies_where_vllm_looks_for_the_adapter(worker, tmp_path):
    request = published(tmp_path / "p", tmp_path / "adapter")
    assert settled(worker, request).error is None
    applied = worker.apply(PolicyId(attempt=1, version=1, digest=request.digest)).applied
    assert applied.version == 1
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert all(bool((tensor == 1).all()) for tensor in tensors.values())
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"change": lambda tensors: tensors.update({A: tensors[A][:2]})}, f"{A}: shape [2, 64], the model has [4, 64]"),
        ({"change": lambda tensors: tensors.pop(A)}, f"tensors missing: {A}"),
        (
            {"change": lambda tensors: tensors.update({"x": tensors[A].clone()})},
            "tensors that the model does not have: x",
        ),
        ({"change": lambda tensors: tensors.update({A: tensors[A].bfloat16()})}, "dtype BF16, accepted: F32"),
        ({"config": {"r": 8}}, "adapter_config.json: r is 8, the engine has 4"),
        ({"config": {"lora_alpha": 1}}, "adapter_config.json: lora_alpha is 1, the engine has 8"),
        ({"config": {"use_rslora": True}}, "adapter_config.json: use_rslora is True, the engine has False"),
        ({"kind": "full", "names": ["adapter_model.safetensors"]}, "kind is 'full', this engine takes 'adapter'"),
        (
            {"names": ["adapter_model.safetensors"]},
            "files adapter_model.safetensors; accepted are adapter_config.json and",
        ),
    ],
)
def test_an_adapter_of_another_form_is_refused_and_the_one_that_serves_stays(worker, tmp_path, settings, message):
    before = (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes()
    request = published(tmp_path / "p", tmp_path / "adapter", **settings)
    status = settled(worker, request)
    assert status.state == "failed"
    assert message in status.error
    refused = worker.apply(PolicyId(attempt=1, version=1, digest=request.digest))
    assert (refused.applied, refused.broken) == (None, False)
    assert (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes() == before
