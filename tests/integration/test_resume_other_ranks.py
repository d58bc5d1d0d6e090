"""A checkpoint is read back to the last bit by more ranks than wrote it, by fewer, and by replicas."""

import math

import pytest

from echorl_core.config import LoraConfig, OptimizerConfig
from echorl_testing.trainer.gang import on_ranks
from echorl_testing.trainer.resume_ranks import resumed, saved
from echorl_testing.trainer.tiny_learner import tiny_model

LORA = LoraConfig(rank=3, alpha=12.0, target_modules=["q_proj", "down_proj"])
"""A rank that two ranks do not divide evenly, as they do not the vocabulary of 265."""


def settings(kind="adamw", **others):
    return OptimizerConfig.model_validate({"type": kind, "lr": 1e-3, "weight_decay": 0.1, **others})


CASES = [
    ("adamw", settings(), None),
    ("muon, int8, host memory", settings("muon", state_dtype="int8", cpu_offload=True), None),
    ("adapter, int8", settings(state_dtype="int8"), LORA),
]


@pytest.mark.parametrize(("writers", "readers", "replicate"), [(2, 1, 1), (1, 2, 1), (2, 2, 2)])
def test_weights_and_optimizer_state_are_the_same_bits(tmp_path, writers, readers, replicate):
    model = tiny_model(tmp_path / "model")
    written, *others = on_ranks(writers, saved, model, tmp_path, CASES)
    assert all(other == written for other in others)
    found = on_ranks(readers, resumed, model, tmp_path, CASES, replicate)
    assert [digests for digests, _ in found] == [written] * readers
    norms = found[0][1]
    assert all(of_rank == norms for _, of_rank in found), "ranks go on together"
    assert all(math.isfinite(norm) and norm > 0 for norm in norms.values())
