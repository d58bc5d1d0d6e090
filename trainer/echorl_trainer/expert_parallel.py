"""Expert parallelism: N ranks have the experts of every layer among them, and tokens go to their experts and back.

    rows in the order of all experts -> exchange -> in the order of the experts here -> products -> and back likewise

Of each stack of matrices, a rank at place n of its group has the n-th part, which is sharded over the ranks at place n
of all groups (FSDP2). Each of these adds its part of the gradient, as ranks with batches of their own do, and those of
a group have added up theirs already: every token has been where its experts are.

How many rows go where is known once the router has chosen, so a layer waits for the device once, for 2 N numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

Products = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Rows in the order of experts, their weights, and the end of each expert's to rows of the same shape."""


class _Permuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order, inverse)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][ctx.saved_tensors[1]], None, None


def permuted(rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """``rows[order]``; ``inverse`` is the permutation back, by which the gradient goes."""
    found: Tensor = _Permuted.apply(rows, order, inverse)  # type: ignore[no-untyped-call]
    return found


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, given: list[int], taken: list[int], group: ProcessGroup) -> Tensor:
        ctx.back = taken, given, group
        return _exchange(rows, given, taken, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(gradients[0], *ctx.back), None, None, None


def _exchange(rows: Tensor, given: list[int], taken: list[int], group: ProcessGroup) -> Tensor:
    received = rows.new_empty(sum(taken), *rows.shape[1:])
    dist.all_to_all_single(received, rows.contiguous(), taken, given, group=group)
    return received


@dataclass(frozen=True)
class ExpertSplit:
    """How the experts of a layer are split over the ranks of a group: equally many, in order."""

    group: ProcessGroup
    size: int
    """Ranks in it, N."""

    def apply(self, products: Products, rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        """Let every row be multiplied where its expert is; collective.

        Args:
            products: what this rank's experts make of rows.
            rows: [R, H], in the order of all E experts.
            weight: [R, 1], of each row.
            ends: int32 [E], where the rows of each expert end.

        Returns:
            [R, H], in the same order.
        """
        counts = torch.diff(ends, prepend=ends.new_zeros(1)).view(self.size, -1)
        arriving = torch.empty_like(counts)
        """int32 [N, E / N]: rows from each rank for each expert here."""
        dist.all_to_all_single(arriving, counts, group=self.group)
        given, taken = torch.stack([counts.sum(1), arriving.sum(1)]).tolist()
        there, back = (given, taken, self.group), (taken, given, self.group)
        # Rows arrive by rank, and of each rank by expert.
        experts = torch.arange(counts.shape[1], device=rows.device).repeat(self.size)
        order = experts.repeat_interleave(arriving.flatten(), output_size=sum(taken)).argsort(stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=order.device)
        own, own_weight = (
            permuted(_Exchanged.apply(one, *there), order, inverse)  # type: ignore[no-untyped-call]
            for one in (rows, weight)
        )
        made = products(own, own_weight, arriving.sum(0).cumsum(0).to(torch.int32))
        found: Tensor = _Exchanged.apply(permuted(made, inverse, order), *back)  # type: ignore[no-untyped-call]
        return found


def split_experts(experts: nn.Module, mesh: DeviceMesh) -> None:
    """Make the stacks [E, ...] of a layer's experts, which lie on meta, tensors that the ranks of ``mesh`` share."""
    for name, stack in list(experts.named_parameters(recurse=False)):
        part = torch.empty_like(stack[: len(stack) // mesh.size()])
        shared = DTensor.from_local(part, mesh, [Shard(0)], run_check=False, shape=stack.shape, stride=stack.stride())
        setattr(experts, name, nn.Parameter(shared, requires_grad=stack.requires_grad))
    experts.split = ExpertSplit(mesh.get_group(), mesh.size())  # type: ignore[assignment] # no tensor, and no module
