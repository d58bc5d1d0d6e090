"""A step's result does not depend on how many ranks take part in it."""

import numpy as np
import pytest
import torch

from echorl_core.config import HookConfig, LossConfig, OptimizerConfig
from echorl_testing.orchestrator.packs import SGD, denominators, distance, tiny_policy
from echorl_testing.trainer.gang import on_ranks
from echorl_testing.trainer.invariance import LENGTHS, by_loss, documents, plain, poisoned, train


def compared(left, right):
    return distance(*({name: torch.from_numpy(value) for name, value in side.items()} for side in (left, right)))


def runs(tmp_path, config, *, tie=False, replicate=1, steps=3):
    """The same training on one rank (this process) and on each of two."""
    start = {name: value.detach() for name, value in tiny_policy(tmp_path / "m", tie=tie).named_parameters()}
    one = train(tmp_path / "m", config, steps)
    two = on_ranks(2, train, tmp_path / "m", config, steps, replicate)
    assert compared(one["weights"], plain(start)) > 1e-3
    return one, two


@pytest.mark.parametrize(
    ("tie", "replicate", "mesh"),
    [
        pytest.param(False, 1, (2,), id="two shards"),
        pytest.param(True, 1, (2,), id="two shards, tied"),
        pytest.param(False, 2, (2, 1), id="two replicas"),
    ],
)
def test_gradient_weights_metrics_and_probe_are_those_of_one_rank(tmp_path, tie, replicate, mesh):
    one, two = runs(tmp_path, SGD, tie=tie, replicate=replicate)
    assert two[0]["mesh"] == mesh
    assert compared(two[0]["gradient"], one["gradient"]) <= 1e-5
    assert compared(two[0]["weights"], one["weights"]) <= 1e-5
    for rank in two:
        assert rank["probe"] == pytest.approx(one["probe"], abs=1e-5)
        for mine, alone in zip(rank["outcomes"], one["outcomes"], strict=True):
            assert mine[0] == pytest.approx(alone[0], rel=1e-4, abs=1e-6)
            assert mine[1].tokens == alone[1].tokens
            assert mine[1].over_tolerance == alone[1].over_tolerance
            assert mine[2] == alone[2]
            assert mine[3] == alone[3] + LENGTHS[-1]
    assert two[0]["outcomes"] == two[1]["outcomes"]
    assert not two[1]["published"]
    assert compared(two[0]["published"], one["published"]) <= 1e-5


def test_adam_state_is_that_of_one_rank(tmp_path):
    one, two = runs(tmp_path, OptimizerConfig(lr=1e-3, max_grad_norm=0.5))
    assert len(one["state"]) == 2 * len(one["weights"])
    for kind in ("exp_avg", "exp_avg_sq"):
        mine, alone = (
            {name: value for name, value in side["state"].items() if name.endswith(f".{kind}")}
            for side in (two[0], one)
        )
        assert compared(mine, alone) <= 1e-5


def test_batches_differ_from_step_to_step():
    assert denominators(documents(1)) == denominators(documents(2))
    assert not np.array_equal(documents(1)[0].token_ids, documents(2)[0].token_ids)


def test_a_nan_on_one_rank_stops_every_rank_before_weights_change(tmp_path):
    tiny_policy(tmp_path / "m")
    results = on_ranks(2, poisoned, tmp_path / "m")
    name = documents(1)[-1].sample_ids[0]
    message = f"step 1: the rl loss is not finite on rank 1 in the micro-batch of samples {name}"
    assert results == [(message, True), (message, True)]


def test_a_rank_without_a_trainable_token_changes_no_loss(tmp_path):
    own = HookConfig(import_path="echorl_testing.trainer.own_losses:sequence_ratio")
    losses = [LossConfig(type=kind) for kind in ("dppo", "ipo", "grpo", "cispo", "reinforce", "opd")]
    losses += [LossConfig(type="custom", hook=own), None]
    alone = by_loss(tmp_path / "m", losses)
    two = on_ranks(2, by_loss, tmp_path / "m", losses)
    for config, wanted, *found in zip(losses, alone, *two, strict=True):
        assert [compared(one, wanted) <= 1e-5 for one in found] == [True, True], config and config.type
    assert all(compared(alone[0], other) > 1e-3 for other in alone[2:])
