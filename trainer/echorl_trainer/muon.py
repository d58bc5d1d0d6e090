"""Muon: the matrices of the transformer layers move by the orthogonal part of their momentum, all else by AdamW.

A rank holds rows of every matrix, but only a whole matrix can be orthogonalised. So in every round each rank of a
shard group collects one matrix, works on it and sends the rows back: no matrix is worked on twice within a group, and
the result does not depend on the number of ranks.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from echorl_trainer.adamw import adamw_step
from echorl_trainer.group_optimizer import GroupOptimizer
from echorl_trainer.moment_store import MomentStore
from echorl_trainer.shards import local, shard_group

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""a, b, c of the polynomial a x + b x^3 + c x^5 that brings singular values near 1 (Jordan, 2024)."""
ITERATIONS = 5
_EPS = 1e-7
_ALL = slice(None)


class Muon(GroupOptimizer):
    """Muon as scaled by Liu et al. (arXiv:2502.16982, equation 4, and 2 for the momentum), with Nesterov momentum.

        M_t = mu M_{t-1} + G_t
        O_t = NewtonSchulz(G_t + mu M_t)
        W_t = W_{t-1} - lr (0.2 sqrt(max(rows, columns)) O_t + weight_decay W_{t-1})

    mu is ``MOMENTUM``. The factor gives updates the size of AdamW's, so both parts share one learning rate and one
    weight decay. Float32 master weights; collective when parameters are sharded.
    """

    def __init__(
        self,
        matrices: Sequence[Tensor],
        others: list[dict[str, Any]],
        *,
        lr: float,
        weight_decay: float,
        betas: tuple[float, float],
        eps: float,
        store: MomentStore | None = None,
    ) -> None:
        """``others``: groups with ``params`` and ``weight_decay`` for AdamW, which ``betas`` and ``eps`` are for.

        ``store`` keeps momentum and moments; None: in float32 on the device.

        Raises:
            ValueError: one of ``matrices`` has not 2 dimensions.
        """
        if odd := [tuple(matrix.shape) for matrix in matrices if matrix.ndim != 2]:
            raise ValueError(f"muon: found a parameter of shape {odd[0]}, accepted are matrices")
        # Equal shapes stand together, so that the ranks of a round have equally much to do.
        ordered = sorted(matrices, key=lambda matrix: (matrix.numel(), tuple(matrix.shape)), reverse=True)
        groups = [{"params": ordered, "weight_decay": weight_decay, "orthogonal": True}] if ordered else []
        groups += [{**group, "orthogonal": False} for group in others]
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps})
        self._store = store or MomentStore()

    def update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Move the matrices by their orthogonal directions, all else by AdamW."""
        if group["orthogonal"]:
            self._orthogonal(parameters, group)
        else:
            adamw_step(parameters, self.state, group, self._store)

    def _orthogonal(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for some in rounds(parameters):
            directions = []
            for parameter in some:
                state, gradient = self.state[parameter], local(parameter.grad)
                if "momentum" not in state:
                    self._store.begin(state, "momentum", parameter)
                momentum = self._store.read(state, "momentum", _ALL, parameter.device, signed=True)
                momentum.mul_(MOMENTUM).add_(gradient)
                directions.append(gradient.add(momentum, alpha=MOMENTUM))
                self._store.write(state, "momentum", _ALL, momentum, signed=True)
            for parameter, update in zip(some, orthogonal_rows(some, directions), strict=True):
                rate = group["lr"] * 0.2 * math.sqrt(max(parameter.shape))
                rows = local(parameter)
                rows.mul_(1.0 - group["lr"] * group["weight_decay"]).add_(update.to(rows.dtype), alpha=-rate)
        if parameters:
            self._store.settle(parameters[0].device)


def newton_schulz(matrix: Tensor) -> Tensor:
    """U V^T of ``matrix`` = U S V^T, roughly: its singular values come out between 0.7 and 1.2 (Jordan, 2024).

        X_0 = matrix / |matrix|_F        X_{k+1} = a X_k + b (X_k X_k^T) X_k + c (X_k X_k^T)^2 X_k

    Shape and dtype are those of ``matrix``, [rows, columns]. A matrix of zeros stays one.
    """
    a, b, c = COEFFICIENTS
    if matrix.shape[0] > matrix.shape[1]:
        return newton_schulz(matrix.t()).t()
    found: Tensor = matrix / matrix.norm().clamp(min=_EPS)
    for _ in range(ITERATIONS):
        gram = found @ found.t()
        found = a * found + (b * gram + c * gram @ gram) @ found
    return found


def rounds(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """``parameters`` in groups of at most as many as ranks share them."""
    group = shard_group(parameters[0]) if parameters else None
    size = 1 if group is None else dist.get_world_size(group)
    yield from (parameters[begin : begin + size] for begin in range(0, len(parameters), size))


def orthogonal_rows(parameters: list[Tensor], directions: list[Tensor]) -> list[Tensor]:
    """This rank's rows of ``newton_schulz`` of each parameter's direction; bfloat16 on CUDA, else float32. Collective.

    ``directions``: this rank's rows of each. ``parameters``: of one round, for how their rows lie over the ranks.
    """
    group = shard_group(parameters[0])
    # Half precision on the way too, because the iteration needs no more of it.
    directions = [rows.bfloat16() if rows.is_cuda else rows for rows in directions]
    if group is None:
        return [newton_schulz(rows) for rows in directions]
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    sent = torch.cat([rows.flatten() for rows in directions])
    given = [rows.numel() for rows in directions] + [0] * (size - len(directions))
    taken = _row_elements(parameters[rank].shape, size) if rank < len(parameters) else [0] * size
    whole = sent.new_empty(sum(taken))
    dist.all_to_all_single(whole, sent, taken, given, group=group)
    if rank < len(parameters):
        whole = newton_schulz(whole.view(parameters[rank].shape)).flatten()
    back = torch.empty_like(sent)
    dist.all_to_all_single(back, whole, given, taken, group=group)
    parts = torch.split(back, given)[: len(directions)]
    return [part.view(rows.shape) for part, rows in zip(parts, directions, strict=True)]


def _row_elements(shape: Iterable[int], size: int) -> list[int]:
    """Elements of a matrix on each of ``size`` ranks: rows in equal parts, the last ones smaller or empty."""
    rows, columns = shape
    most = -(-rows // size)
    return [columns * min(most, max(0, rows - rank * most)) for rank in range(size)]
