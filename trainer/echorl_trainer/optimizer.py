"""Optimizer and learning-rate schedule."""

import math
from dataclasses import dataclass

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from echorl_core.config import OptimizerConfig


@dataclass(frozen=True)
class Schedule:
    """Learning rate as a pure function of the step, so there is nothing to save and nothing to restore."""

    optimizer: Optimizer
    config: OptimizerConfig
    max_steps: int

    def lr(self, step: int) -> float:
        """Learning rate of optimizer step ``step``, counted from 1.

        Warm-up rises linearly and reaches ``lr`` at step ``warmup_steps``; linear and cosine then fall to
        ``min_lr_ratio * lr`` at ``max_steps`` and stay there.
        """
        config = self.config
        if step <= config.warmup_steps:
            return config.lr * step / config.warmup_steps
        if config.schedule == "constant":
            return config.lr
        span = self.max_steps - max(config.warmup_steps, 1)
        done = 1.0 if span <= 0 else min(1.0, (step - max(config.warmup_steps, 1)) / span)
        falling = 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * falling)

    def apply(self, step: int) -> float:
        """Set the optimizer's learning rate for ``step`` and return it."""
        lr = self.lr(step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr


def build_optimizer(policy: nn.Module, config: OptimizerConfig) -> Optimizer:
    """AdamW or plain SGD (no momentum) over all parameters, after ``shard``.

    Weight decay leaves one-dimensional parameters alone: norms and biases.
    """
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.type == "sgd":
        return SGD(groups, lr=config.lr)
    fused = all(parameter.device.type == "cuda" for parameter in parameters)
    return AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)


def build_schedule(optimizer: Optimizer, config: OptimizerConfig, max_steps: int) -> Schedule:
    """The schedule that ``config`` names; see ``Schedule.lr``."""
    return Schedule(optimizer, config, max_steps)
