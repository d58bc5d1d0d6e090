"""The trainer's part of the preflight: versions whose probes say what an engine must compute."""

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from echorl_core import preflight_step
from echorl_core.config import LoraConfig, OptimizerConfig
from echorl_core.identity import RunIdentity
from echorl_core.wire.weights import Probe, WeightManifest
from echorl_testing.trainer.tiny_learner import tiny_config, tiny_learner, tiny_model
from echorl_trainer.parallel import Ranks
from echorl_trainer.preflight_step import MOVES_BY, run_preflight_step
from echorl_trainer.probe import PROBE_TOLERANCE, probe_logprobs

LORA = LoraConfig(rank=2, alpha=4.0, target_modules=["q_proj", "up_proj"])
IDENTITY = RunIdentity("test", "uid", 1)


def probe_of(found: preflight_step.PreflightStep, version: int) -> Probe:
    probe = found.versions[version].probe
    assert probe is not None
    return probe


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_step_and_swaps_that_can_be_told_apart(ranks: Ranks, tmp_path: Path, kind: str) -> None:
    model = tiny_model(tmp_path / "model")
    # So small a step that no engine could show it.
    optimizer = OptimizerConfig.model_validate({"type": kind, "lr": 1e-9})
    config = tiny_config(model, lora=LORA, optimizer=optimizer)
    found = run_preflight_step(config, IDENTITY, tmp_path / "out", swaps=5, ranks=ranks)
    preflight_step.write(tmp_path / "out", found)
    assert preflight_step.read(tmp_path / "out") == found
    assert [version.version for version in found.versions] == list(range(7))
    assert found.gradient_norm > 0
    start = probe_logprobs(tiny_learner(ranks, model).state.policy, ranks, probe_of(found, 0).token_ids)
    assert probe_of(found, 0).logprobs == pytest.approx(start, abs=1e-5)
    files = []
    for version in found.versions:
        folder = Path(version.url.removeprefix("file://")).parent
        manifest = msgspec.json.decode((folder / "manifest.json").read_bytes(), type=WeightManifest)
        assert (manifest.kind, manifest.run_uid, manifest.version) == ("adapter", "uid", version.version)
        files.append(load_file(folder / "adapter_model.safetensors"))
    assert any(not torch.equal(tensor, files[0][name]) for name, tensor in files[1].items()), "the step did something"
    for before, after in zip(range(1, 6), range(2, 7), strict=True):
        pairs = zip(probe_of(found, before).logprobs, probe_of(found, after).logprobs, strict=True)
        assert max(abs(a - b) for a, b in pairs) >= MOVES_BY * PROBE_TOLERANCE[torch.float32]


def test_a_run_without_an_adapter_has_nothing_to_rehearse(ranks: Ranks, tmp_path: Path) -> None:
    config = tiny_config(tiny_model(tmp_path / "model"))
    with pytest.raises(ValueError, match=r"model\.lora: is not set"):
        run_preflight_step(config, IDENTITY, tmp_path / "out", swaps=5, ranks=ranks)
