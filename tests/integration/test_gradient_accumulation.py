"""Micro-batches of a step: how often ranks speak of them, and that the gradient is the same."""

import pytest
import torch

from echorl_testing.orchestrator.packs import distance, tiny_policy
from echorl_testing.trainer.accumulation_ranks import MICRO_BATCHES, stepped
from echorl_testing.trainer.gang import on_ranks

LAYERS = 2
PARTS = LAYERS + 1
"""What FSDP gathers and reduces at once: each layer, and all that is in none."""


def tensors(arrays):
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "m"
    tiny_policy(folder)
    return folder


@pytest.fixture(scope="module")
def alone(model):
    return stepped(model, "sharded")


@pytest.mark.parametrize(
    ("mode", "replicate", "counts"),
    [
        # Layers are gathered again for backward, the rest is kept from forward.
        ("sharded", 1, {"gathers": MICRO_BATCHES * (PARTS + LAYERS), "reductions": MICRO_BATCHES * PARTS}),
        ("unsharded", 1, {"gathers": PARTS, "reductions": PARTS}),
        ("sharded", 2, {"exchanges": PARTS}),
        ("unsharded", 2, {"exchanges": PARTS}),
    ],
)
def test_collectives_of_a_step_are_counted_and_its_gradient_is_that_of_one_rank(model, alone, mode, replicate, counts):
    for rank in on_ranks(2, stepped, model, mode, replicate):
        assert rank["counts"] == counts
        assert distance(tensors(rank["gradient"]), tensors(alone["gradient"])) <= 1e-5
        assert distance(tensors(rank["weights"]), tensors(alone["weights"])) <= 1e-5
        assert rank["probe"] == pytest.approx(alone["probe"], abs=1e-5), "weights of before the step stay gathered"
