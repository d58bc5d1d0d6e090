"""What a rank does in the test of Muon's exchange of rows; importable by spawned processes."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from echorl_trainer.muon import orthogonal_rows, rounds
from echorl_trainer.parallel import connect, disconnect
from echorl_trainer.shards import local

Pair = tuple[NDArray[np.float32], NDArray[np.float32]]


def orthogonalised(shapes: list[tuple[int, int]]) -> list[Pair]:
    """Seeded matrices sharded by rows, each with what the ranks made of it together."""
    ranks = connect(device="cpu", timeout_s=60.0)
    try:
        wholes = [
            torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed, shape in enumerate(shapes)
        ]
        sharded: list[torch.Tensor] = [distribute_tensor(whole, ranks.mesh, [Shard(0)]) for whole in wholes]
        found = [rows for some in rounds(sharded) for rows in orthogonal_rows(some, [local(matrix) for matrix in some])]
        together = [
            DTensor.from_local(rows, ranks.mesh, [Shard(0)], shape=whole.shape, stride=whole.stride()).full_tensor()
            for rows, whole in zip(found, wholes, strict=True)
        ]
        return [(whole.numpy(), result.numpy()) for whole, result in zip(wholes, together, strict=True)]
    finally:
        disconnect()
