"""What a rank does in the test of a gang that changes its size; importable by spawned processes."""

from pathlib import Path

import numpy as np

from echorl_core.config import OptimizerConfig
from echorl_testing.trainer.invariance import batch, plain
from echorl_testing.trainer.tiny_learner import tiny_learner, weights
from echorl_trainer.parallel import connect, disconnect
from echorl_trainer.state import save_state

Weights = dict[str, np.ndarray]


def attempt(
    model: Path, folder: Path, optimizer: OptimizerConfig, first: int, last: int
) -> tuple[list[float], Weights, Weights]:
    """Train steps ``first`` to ``last`` on from the checkpoint before ``first``, if there is one, and save the last.

    The gradient's norm of each step, and the weights before the first and after the last.
    """
    ranks = connect(1, "cpu", 60.0)
    try:
        learner = tiny_learner(ranks, model, optimizer=optimizer)
        if first > 1:
            assert learner.state.restore(folder / str(first - 1)) == first - 1
        before, norms = plain(weights(learner)), []
        for step in range(first, last + 1):
            outcome = learner.runner.run(batch(step, ranks.data_rank, ranks.num_data_ranks))
            norms.append(float(outcome.metrics["optim/grad_norm"] or 0.0))
        save_state(learner.state, last, folder / str(last))
        return norms, before, plain(weights(learner))
    finally:
        disconnect()
