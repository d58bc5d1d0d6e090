"""A rank's part of a tensor that ranks share by rows."""

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


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
