"""Muon and signSGD move weights alike however many ranks share them, also when rows do not divide evenly."""

import pytest
import torch

from echorl_core.config import OptimizerConfig
from echorl_testing.orchestrator.packs import distance, tiny_policy
from echorl_testing.trainer.gang import on_ranks
from echorl_testing.trainer.invariance import train
from echorl_testing.trainer.muon_ranks import orthogonalised
from echorl_trainer.muon import newton_schulz


def tensors(arrays):
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


@pytest.mark.parametrize("replicate", [1, 2])
@pytest.mark.parametrize("kind", ["muon", "signSgd"])
def test_weights_and_state_are_those_of_one_rank(tmp_path, kind, replicate):
    config = OptimizerConfig(type=kind, lr=1e-3, weight_decay=0.1, max_grad_norm=0.5)
    start = {name: value.detach() for name, value in tiny_policy(tmp_path / "m").named_parameters()}
    one = train(tmp_path / "m", config, 3)
    two = on_ranks(2, train, tmp_path / "m", config, 3, replicate)
    assert distance(tensors(one["weights"]), start) > 1e-3
    assert distance(tensors(two[0]["weights"]), tensors(one["weights"])) <= 1e-5
    assert two[0]["state"].keys() == one["state"].keys()
    if kind == "muon":
        assert distance(tensors(two[0]["state"]), tensors(one["state"])) <= 1e-5


def test_every_rank_gets_its_rows_of_whole_matrices():
    """Five and two rows over three ranks: one has fewer, one has none; more matrices than ranks: two rounds."""
    shapes = [(5, 3), (2, 7), (4, 4), (7, 2)]
    for rank in on_ranks(3, orthogonalised, shapes):
        for (given, found), shape in zip(rank, shapes, strict=True):
            assert given.shape == shape
            torch.testing.assert_close(torch.from_numpy(found), newton_schulz(torch.from_numpy(given)), rtol=0, atol=0)
