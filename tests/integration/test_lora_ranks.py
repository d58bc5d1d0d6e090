"""Adapters train alike however many ranks share them and the frozen model."""

import pytest
import torch

from echorl_core.config import LoraConfig, OptimizerConfig
from echorl_testing.orchestrator.packs import distance
from echorl_testing.trainer.gang import on_ranks
from echorl_testing.trainer.invariance import train

LORA = LoraConfig(rank=3, alpha=12.0, target_modules=["q_proj", "down_proj", "model.layers.1.self_attn.v_proj"])
"""A rank that two ranks do not divide evenly."""


def tensors(arrays, marker=""):
    return {name: torch.from_numpy(values) for name, values in arrays.items() if marker in name}


@pytest.mark.parametrize("replicate", [1, 2])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_adapters_and_their_state_are_those_of_one_rank(tmp_path, kind, replicate):
    config = OptimizerConfig(type=kind, lr=1e-2, weight_decay=0.1, max_grad_norm=0.5)
    one = train(tmp_path / "m", config, 3, lora=LORA)
    two = on_ranks(2, train, tmp_path / "m", config, 3, replicate, "cpu", LORA)
    assert all(".lora_" in name for name in one["gradient"]), "nothing else has a gradient"
    assert distance(tensors(two[0]["gradient"]), tensors(one["gradient"])) <= 1e-5
    adapters = tensors(one["weights"], ".lora_")
    assert distance(tensors(two[0]["weights"], ".lora_"), adapters) <= 1e-4
    assert distance(tensors(two[0]["state"]), tensors(one["state"])) <= 1e-4
    assert two[0]["probe"] == pytest.approx(one["probe"], abs=1e-4)
    # What is published is the whole adapter, from rank 0 alone.
    published = tensors(two[0]["published"])
    assert {f"base_model.{name}" for name in adapters} == published.keys()
    assert distance(published, tensors(one["published"])) <= 1e-4
    assert two[1]["published"] == {}
