"""The step's benchmark at a size for a CPU: both sides train, and what is told of them is whole."""

import json

import pytest
from transformers import AutoConfig

from benchmarks.step.__main__ import PEER, main
from benchmarks.trainer_speed import model_flops
from echorl_testing.campaign import of_benchmark
from echorl_testing.manifests.model_configs import QWEN3_30B_A3B
from echorl_testing.orchestrator.packs import document


@of_benchmark("step")
def test_both_sides_train_the_same_documents(tmp_path, capsys):
    shape = ["--shape", "tiny", "--tokens", "256", "--micro-batches", "1", "--repeats", "1"]
    options = ["--device", "cpu", "--eager", "--sides", PEER, "ours", "--out", str(tmp_path)]
    assert main([*options, *shape]) == 0
    peer, ours = map(json.loads, (tmp_path / "step.jsonl").read_text().splitlines())
    assert peer["over_peer"] == 1.0
    assert ours["over_peer"] == peer["step_s"] / ours["step_s"]
    assert ours["tokens_per_s"] * ours["step_s"] == pytest.approx(256)
    assert f"| {PEER} |" in capsys.readouterr().out


def test_operations_of_a_mixture_of_experts_are_those_of_its_active_parameters():
    """One document of two tokens, none scored: 6 for every weight of a layer that a token goes through, and attention
    of 4096 wide queries, in which one token sees one key and the other two.
    """
    config = AutoConfig.for_model(**{key: value for key, value in QWEN3_30B_A3B.items() if key != "architectures"})
    micro = document(1, 2)
    in_layers = 48 * (18_874_368 + 262_144 + 8 * 4_718_592)
    assert model_flops(micro, config) == 6.0 * (2 * in_layers + 48 * 4096 * 2 * 3)
