"""Optimizer and learning-rate schedule."""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.optimizer import ParamsT

from echorl_core.config import OptimizerConfig
from echorl_trainer.adamw import StoredAdamW
from echorl_trainer.group_optimizer import GroupOptimizer
from echorl_trainer.model import Policy
from echorl_trainer.moment_store import MomentStore
from echorl_trainer.muon import Muon
from echorl_trainer.shards import local


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
        peak = max(config.warmup_steps, 1)
        span = self.max_steps - peak
        # A run of one step trains with ``lr``: falling already, it would train nothing.
        done = float(step > peak) if span <= 0 else min(1.0, (step - peak) / span)
        falling = 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * falling)

    def apply(self, step: int) -> float:
        """Set the optimizer's learning rate for ``step`` and return it."""
        lr = self.lr(step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr


class SignSgd(GroupOptimizer):
    """signSGD (Bernstein et al., arXiv:1802.04434, algorithm 1), with decoupled weight decay. Keeps no state.

    W_t = W_{t-1} - lr (sign(G_t) + weight_decay W_{t-1}), with sign(0) = 0.
    """

    def __init__(self, params: ParamsT, lr: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": 0.0})

    def update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Move each element against the sign of its gradient."""
        for parameter in parameters:
            values = local(parameter).mul_(1.0 - group["lr"] * group["weight_decay"])
            values.sub_(local(parameter.grad).sign(), alpha=group["lr"])


def build_optimizer(policy: nn.Module, config: OptimizerConfig) -> Optimizer:
    """The optimizer that ``config`` names over all parameters, after ``shard``; plain SGD has no momentum.

    Weight decay leaves one-dimensional parameters alone: norms and biases. Muon has the matrices of the transformer
    layers; norms, embeddings and the output head are AdamW's.

    Raises:
        ValueError: Muon for a mixture of experts.
    """
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    store = MomentStore(config.state_dtype, offload=config.cpu_offload)
    if config.type == "muon":
        if any(p.ndim > 2 for p in parameters):
            raise ValueError("optimizer.type: found muon, accepted for mixtures of experts: adamw, signSgd, sgd")
        hidden = {id(p) for p in policy.layers.parameters()} if isinstance(policy, Policy) else set()
        matrices = [p for p in parameters if p.ndim == 2 and id(p) in hidden]
        chosen = {id(matrix) for matrix in matrices}
        others = _groups([p for p in parameters if id(p) not in chosen], config.weight_decay)
        settings = {"lr": config.lr, "weight_decay": config.weight_decay}
        return Muon(matrices, others, betas=config.betas, eps=config.eps, store=store, **settings)
    groups = _groups(parameters, config.weight_decay)
    if config.type == "sgd":
        return SGD(groups, lr=config.lr)
    if config.type == "signSgd":
        return SignSgd(groups, lr=config.lr)
    # torch's own steps on tensors of one mesh together, and has no step for tensors of several.
    if not store.is_plain or len({p.device_mesh for p in parameters if isinstance(p, DTensor)}) > 1:
        return StoredAdamW(groups, store, lr=config.lr, betas=config.betas, eps=config.eps)
    fused = all(parameter.device.type == "cuda" for parameter in parameters)
    return AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)


def _groups(parameters: list[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_schedule(optimizer: Optimizer, config: OptimizerConfig, max_steps: int) -> Schedule:
    """The schedule that ``config`` names; see ``Schedule.lr``."""
    return Schedule(optimizer, config, max_steps)
