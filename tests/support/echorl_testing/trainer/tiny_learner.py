"""A small learner in this process: a group of one, a seeded model, an optimizer with a state."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from echorl_core.config import LoraConfig, TrainerConfig
from echorl_core.rundir import RunDirectory
from echorl_testing.trainer.batches import rank_batch
from echorl_testing.trainer.trainer_processes import TINY, trainer_config
from echorl_trainer.learner import Learner, build_learner
from echorl_trainer.parallel import Ranks, connect, disconnect
from echorl_trainer.seeded import Family, write_seeded_model


@contextmanager
def alone() -> Iterator[Ranks]:
    """A process group of this process only."""
    ranks = connect(device="cpu", timeout_s=60)
    try:
        yield ranks
    finally:
        disconnect()


def tiny_model(folder: Path, *, tie: bool = False, seed: int = 1, family: Family = "qwen3") -> Path:
    """A model folder of shape ``TINY``."""
    write_seeded_model(folder, TINY, seed, tie=tie, family=family)
    return folder


def tiny_learner(
    ranks: Ranks, model: Path, *, steps: int = 0, lora: LoraConfig | None = None, **config: object
) -> Learner:
    """A learner that trained synthetic batches 1..``steps``."""
    learner = build_learner(tiny_config(model, lora=lora, **config), ranks)
    train(learner, 1, steps)
    return learner


def tiny_config(model: Path, *, lora: LoraConfig | None = None, **config: object) -> TrainerConfig:
    """A config that reads no run directory; ``lora``: an adapter trains instead of all weights."""
    found = trainer_config(RunDirectory(model.parent / "run"), model, "http://127.0.0.1:9", **config)
    return found.model_copy(update={"model": found.model.model_copy(update={"lora": lora})})


def train(learner: Learner, first: int, last: int) -> None:
    """Train synthetic batches ``first``..``last``."""
    for step in range(first, last + 1):
        learner.runner.run(rank_batch(step))


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    """Copies of all parameters."""
    return {name: p.full_tensor().detach().clone() for name, p in learner.state.policy.named_parameters()}  # type: ignore[attr-defined]
