"""Versions that several real ranks serve among them, by gloo: what engines get of them, and a rank that is lost."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from echorl_testing import campaign
from echorl_testing.local.local_run import local_run, manifest, write_model
from echorl_testing.trainer import sharing_ranks
from echorl_testing.trainer.gang import on_ranks
from echorl_testing.trainer.tiny_learner import tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def test_two_ranks_serve_bit_for_bit_what_one_serves(model: Path, tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("one", "two")]
    for run in runs:
        run.mkdir()
    (alone,) = on_ranks(1, sharing_ranks.three_versions, model, runs[0])
    (shared, other) = on_ranks(2, sharing_ranks.three_versions, model, runs[1])
    assert other == []
    for version, (one, two) in enumerate(zip(alone, shared, strict=True)):
        assert one["tensors"] == two["tensors"]
        assert two["probe"] == pytest.approx(one["probe"], abs=1e-6)
        assert one["ratio"] == two["ratio"]
        assert one["folders"] == [None]
        assert len(set(two["folders"])) == 2
        beside = sum(size for size, folder in zip(two["sizes"], two["folders"], strict=True) if folder is None)
        assert abs(2 * beside - sum(two["sizes"])) <= 2 * max(two["sizes"]), "about half"
        assert (one["delta"], two["delta"]) == (("used",) * 2 if version == 1 else ("none",) * 2)
        assert one["parts"] == []
        # Of one tensor, all in one rank's part.
        assert sorted(two["parts"]) == ([0, two["received"]] if version == 1 else [])
        assert two["received"] == (one["received"] if version == 1 else sum(two["sizes"]))
    exports = [run / "exports" / "step_000002" for run in runs]
    loaded = [AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32).state_dict() for export in exports]
    assert all(torch.equal(loaded[0][name], tensor) for name, tensor in loaded[1].items())
    assert len(list(exports[1].glob("*.safetensors"))) == len(shared[2]["sizes"])
    assert not [one for one in exports[1].parent.iterdir() if one != exports[1]]


def test_only_the_first_replica_serves(model: Path, tmp_path: Path) -> None:
    """Two replicas of one rank each: the one is alone, as it always was."""
    found, other = on_ranks(2, sharing_ranks.three_versions, model, tmp_path, 2)
    assert other == []
    assert [one["folders"] for one in found] == [[None]] * 3
    assert [one["delta"] for one in found] == ["none", "used", "none"]
    assert load_file(tmp_path / "exports" / "step_000002" / "model.safetensors").keys() == found[2]["tensors"].keys()


def test_two_ranks_broadcast_their_files_through_one_group(model: Path, tmp_path: Path) -> None:
    found, other = on_ranks(2, sharing_ranks.received, model, tmp_path)
    assert found == [(True, 2)] * 3
    assert other == []


def test_a_rank_that_is_lost_is_named_and_leaves_nothing_half_fetched(model: Path, tmp_path: Path) -> None:
    found, other = on_ranks(2, sharing_ranks.one_is_lost, model, tmp_path)
    assert other is None
    assert found is not None
    folder, said, spool = found
    assert said.startswith(folder)
    assert "refused" in said
    assert spool == []


def test_a_nan_in_one_ranks_part_ends_all(model: Path, tmp_path: Path) -> None:
    said = on_ranks(2, sharing_ranks.poisoned, model, tmp_path)
    assert len(set(said)) == 1
    assert said[0].startswith("policy version 1: model.norm.weight: ")


@pytest.mark.vllm
@campaign.ALL
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["http", "nccl"])
def test_a_real_engine_takes_what_two_ranks_serve(tmp_path: Path, mode: str) -> None:
    """A whole run; the engine's logprobs of every version's probe are those of the trainer."""
    document = manifest(write_model(tmp_path / "model"), maxSteps=3)
    document["spec"] |= {"weightTransfer": {"mode": mode}}
    document["spec"]["trainer"]["replicas"] = 2
    with local_run(tmp_path, document) as run:
        assert run.start().ended(800) == 0, run.output()
    updates = [json.loads(line) for file in run.root.glob("records/*/updates.jsonl") for line in file.open()]
    assert {update["version"] for update in updates} >= {0, 1, 2}
    assert all(update["max_probe_error"] < 1e-3 for update in updates)
    logs = "".join(file.read_text(errors="replace") for file in run.root.glob("logs/*/*.log"))
    assert ("a version was broadcast" in logs) == (mode == "nccl")
    assert "is fetched, not received by broadcast" not in logs
    weights = list(run.root.glob("checkpoints/step_*/attempt_1/weights/*.safetensors"))
    assert len({file.name for file in weights}) > 1
