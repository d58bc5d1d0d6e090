"""What a rank does in the tests of resuming at another number of ranks; importable by spawned processes."""

from collections.abc import Sequence
from pathlib import Path

from echorl_core.config import LoraConfig, OptimizerConfig
from echorl_testing.trainer.batches import rank_batch
from echorl_testing.trainer.tiny_learner import tiny_learner
from echorl_trainer.parallel import connect, disconnect
from echorl_trainer.state import save_state, state_digest

Case = tuple[str, OptimizerConfig, LoraConfig | None]
"""A name, and what trains how."""


def saved(model: Path, folder: Path, cases: Sequence[Case], replicate: int = 1, expert: int = 1) -> dict[str, str]:
    """Train two steps of each case and write a checkpoint by its name; the digest of what that holds."""
    ranks = connect(replicate, "cpu", 60.0, expert=expert)
    found = {}
    try:
        for name, optimizer, lora in cases:
            learner = tiny_learner(ranks, model, lora=lora, optimizer=optimizer)
            for step in (1, 2):
                learner.runner.run(rank_batch(step, ranks.rank, num_ranks=ranks.world_size))
            save_state(learner.state, 2, folder / name)
            found[name] = state_digest(learner.state.policy, learner.state.optimizer)
    finally:
        disconnect()
    return found


def resumed(
    model: Path, folder: Path, cases: Sequence[Case], replicate: int = 1, expert: int = 1
) -> tuple[dict[str, str], dict[str, float]]:
    """Read each checkpoint: the digest of what it gave, and the gradient's norm of the step after it."""
    ranks = connect(replicate, "cpu", 60.0, expert=expert)
    digests, norms = {}, {}
    try:
        for name, optimizer, lora in cases:
            learner = tiny_learner(ranks, model, lora=lora, optimizer=optimizer)
            step = learner.state.restore(folder / name)
            digests[name] = state_digest(learner.state.policy, learner.state.optimizer)
            outcome = learner.runner.run(rank_batch(step + 1, ranks.rank, num_ranks=ranks.world_size))
            norms[name] = float(outcome.metrics["optim/grad_norm"] or 0.0)
    finally:
        disconnect()
    return digests, norms
