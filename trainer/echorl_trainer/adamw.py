"""AdamW on moments that are not kept in float32 on the device; of such, torch's own is faster."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.adamw import adamw
from torch.optim.optimizer import ParamsT

from echorl_trainer.group_optimizer import GroupOptimizer
from echorl_trainer.moment_store import MomentStore
from echorl_trainer.shards import local

MOMENTS = {"exp_avg": True, "exp_avg_sq": False}
"""First and second moment by torch's names, and whether they have a sign."""


class StoredAdamW(GroupOptimizer, AdamW):
    """AdamW (arXiv:1711.05101, algorithm 2, bias-corrected); ``store`` keeps its moments.

    Its groups and the names in its state are torch's, so a checkpoint of either is read by the other.
    """

    def __init__(
        self, params: ParamsT, store: MomentStore, *, lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, fused=False)
        self._store = store

    def update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Move the parameters."""
        adamw_step(parameters, self.state, group, self._store)


def adamw_step(
    parameters: list[Tensor], states: Mapping[Any, dict[str, Any]], group: dict[str, Any], store: MomentStore
) -> None:
    """One step on this rank's rows of ``parameters``, for it looks at each element alone.

    ``group``: ``lr``, ``betas``, ``eps`` and ``weight_decay``.
    """
    for parameter in parameters:
        if not (state := states[parameter]):
            state["step"] = torch.tensor(0.0)
            for name in MOMENTS:
                store.begin(state, name, parameter)
    beta1, beta2 = group["betas"]
    for pieces in store.pieces(parameters):
        moments = {
            name: [
                store.read(states[parameter], name, rows, parameter.device, signed=signed) for parameter, rows in pieces
            ]
            for name, signed in MOMENTS.items()
        }
        adamw(
            [local(parameter)[rows] for parameter, rows in pieces],
            [local(parameter.grad)[rows] for parameter, rows in pieces],
            moments["exp_avg"],
            moments["exp_avg_sq"],
            [],
            [states[parameter]["step"].clone() for parameter, _ in pieces],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        for name, signed in MOMENTS.items():
            for (parameter, rows), values in zip(pieces, moments[name], strict=True):
                store.write(states[parameter], name, rows, values, signed=signed)
    for parameter in parameters:
        states[parameter]["step"] += 1.0
    if parameters:
        store.settle(parameters[0].device)
