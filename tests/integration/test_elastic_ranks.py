"""A gang of two ranks goes on with one and grows again: the same batches, and the numbers of one never stopped."""

import numpy as np

from echorl_core.config import OptimizerConfig
from echorl_testing.trainer.elastic_ranks import attempt
from echorl_testing.trainer.gang import on_ranks
from echorl_testing.trainer.tiny_learner import tiny_model

STEPS = 6


def test_two_ranks_then_one_then_two_train_as_two_do(tmp_path):
    model = tiny_model(tmp_path / "model")
    settings = OptimizerConfig(lr=1e-3, weight_decay=0.1, schedule="linear", warmup_steps=2)
    (norms, start, whole), *_ = on_ranks(2, attempt, model, tmp_path / "whole", settings, 1, STEPS)
    elastic: list[float] = []
    for ranks, first, last in ((2, 1, 2), (1, 3, 4), (2, 5, STEPS)):
        (told, _, found), *_ = on_ranks(ranks, attempt, model, tmp_path / "elastic", settings, first, last)
        elastic += told
    np.testing.assert_allclose(elastic, norms, rtol=1e-5)
    moved = max(float(np.abs(whole[name] - start[name]).max()) for name in whole)
    assert moved > 1e-3, "the weights have gone further than they may differ"
    for name, expected in whole.items():
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-5, err_msg=name)
