"""A rank's part of a tensor that ranks share by rows."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


@dataclass(frozen=True)
class Portion:
    """A matrix of a stack of them [E, R, C], of which it is some rows: a tensor of its own where weights are read."""

    stack: Tensor
    number: int
    rows: slice

    @property
    def shape(self) -> torch.Size:
        """Of the portion."""
        return torch.Size((self.rows.stop - self.rows.start, self.stack.shape[2]))

    def of(self, whole: Tensor) -> Tensor:
        """Its values, a view of the whole stack's."""
        return whole[self.number, self.rows]


def local(tensor: Any) -> Tensor:
    """This rank's part of ``tensor``, which shares its memory."""
    found: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return found


def rows_of(tensor: Tensor) -> slice:
    """Which rows of the whole tensor this rank holds; maybe none, and all where it is not shared."""
    if not isinstance(tensor, DTensor):
        return slice(0, tensor.shape[0])
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return slice(offset[0], offset[0] + shape[0])


def shard_group(tensor: Any) -> Any:
    """The process group of the ranks that share ``tensor`` by rows; None: this rank holds it whole."""
    if not isinstance(tensor, DTensor):
        return None
    for index, placement in enumerate(tensor.placements):
        if isinstance(placement, Shard) and tensor.device_mesh.size(index) > 1:
            return tensor.device_mesh.get_group(index)
    return None
