"""Ranks, their mesh, and how a policy is sharded over them (FSDP2)."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from echorl_trainer.context import ContextGroup
from echorl_trainer.expert_parallel import split_experts
from echorl_trainer.experts import expert_stacks
from echorl_trainer.model import Checkpointing, Policy, checkpoint_layers, compile_layers

Accumulation = Literal["sharded", "unsharded"]
"""How gradients of a step's micro-batches add up; see ``accumulating``."""

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Ranks:
    """This process among its peers."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    mesh: DeviceMesh
    """("shard",), or ("replicate", "shard") with more than one replica."""
    context: ContextGroup | None = None
    """Those that share this one's packs; None: it has packs of its own."""
    experts: DeviceMesh | None = None
    """How experts are split: ``mesh`` with its last dimension divided into ("shard", "expert"); None: they are not."""

    @property
    def context_size(self) -> int:
        """How many ranks share a pack."""
        return 1 if self.context is None else self.context.size

    @property
    def expert_size(self) -> int:
        """Over how many ranks a layer's experts are split."""
        return 1 if self.experts is None else self.experts["expert"].size()

    @property
    def data_rank(self) -> int:
        """Whose batch this rank trains: consecutive ranks share one."""
        return self.rank // self.context_size

    @property
    def num_data_ranks(self) -> int:
        """How many batches a step has."""
        return self.world_size // self.context_size

    @property
    def replica_size(self) -> int:
        """How many consecutive ranks hold the model among them."""
        return self.mesh["shard"].size()

    @property
    def speaks(self) -> bool:
        """Whether this rank tells of its batch, which no other one may count again."""
        return self.context is None or self.context.index == 0

    def agree(self, own: bool) -> bool:  # noqa: FBT001 - all there is to say
        """Whether all ranks say yes; collective, and nothing waits for the device."""
        if self.world_size == 1:
            return own
        said = torch.tensor([int(own)])
        dist.all_reduce(said, dist.ReduceOp.MIN)
        return bool(said)


def connect(
    replicate: int = 1,
    device: Literal["cpu", "cuda"] | None = None,
    timeout_s: float = 1800.0,
    *,
    context: int = 1,
    expert: int = 1,
) -> Ranks:
    """Join the process group that torchrun's variables describe; without any of them, a group of one.

    gloo serves CPU tensors on every device, NCCL serves CUDA tensors. A collective that waits longer than
    ``timeout_s`` fails. Every ``context`` consecutive ranks share their packs, and every ``expert`` consecutive ones
    have a layer's experts among them; a replica has them together.

    Raises:
        ValueError: variables are missing or wrong, or ``replicate``, ``context`` or ``expert`` does not divide the
            number of ranks.
    """
    rank, world_size, local_rank = _placement(os.environ)
    if replicate < 1 or world_size % replicate:
        raise ValueError(f"replicate: found {replicate}, accepted is a divisor of the {world_size} ranks")
    for name, size in (("context", context), ("expert", expert)):
        if size < 1 or (world_size // replicate) % size:
            accepted = f"a divisor of the {world_size // replicate} ranks of a replica"
            raise ValueError(f"{name}: found {size}, accepted is {accepted}")
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    place = torch.device(kind, local_rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(place)
    # A group of one needs no address, so no port can be taken.
    store = HashStore() if world_size == 1 else None
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
        device_id=place if kind == "cuda" else None,
    )
    shape, names = (
        ((world_size,), ("shard",))
        if replicate == 1
        else ((replicate, world_size // replicate), ("replicate", "shard"))
    )
    mesh = init_device_mesh(kind, shape, mesh_dim_names=names)
    among = _context_group(kind, world_size, context)
    if expert == 1:
        return Ranks(rank, world_size, local_rank, place, mesh, among)
    divided = (*shape[:-1], shape[-1] // expert, expert)
    experts = init_device_mesh(kind, divided, mesh_dim_names=(*names, "expert"))
    return Ranks(rank, world_size, local_rank, place, mesh, among, experts)


def _context_group(kind: str, world_size: int, size: int) -> ContextGroup | None:
    if size == 1:
        return None
    mesh = init_device_mesh(kind, (world_size // size, size), mesh_dim_names=("data", "context"))
    return ContextGroup(mesh.get_group("context"), mesh.get_local_rank("context"), size)


def _placement(environ: Mapping[str, str]) -> tuple[int, int, int]:
    found = [name for name in _VARIABLES if environ.get(name)]
    if "RANK" not in found and "WORLD_SIZE" not in found:
        return 0, 1, 0
    world_size = environ.get("WORLD_SIZE", "")
    missing = [name for name in _VARIABLES if name not in found]
    if world_size == "1":
        missing = [name for name in missing if name in ("RANK", "LOCAL_RANK")]
    if missing:
        raise ValueError(f"environment variables are missing: {', '.join(missing)}")
    values = [environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    if not all(value.isdigit() for value in values) or not int(values[0]) < int(values[1]):
        raise ValueError(f"RANK, WORLD_SIZE, LOCAL_RANK: found {values}, accepted are integers, RANK below WORLD_SIZE")
    return int(values[0]), int(values[1]), int(values[2])


def disconnect() -> None:
    """Leave the process group, if one was joined."""
    if dist.is_initialized():
        dist.destroy_process_group()


def shard(
    policy: Policy,
    ranks: Ranks,
    compute_dtype: torch.dtype,
    *,
    compile: bool = False,  # noqa: A002 - the config's word
    activation_checkpointing: Checkpointing = "none",
) -> None:
    """Shard a policy on the meta device over the ranks, layer by layer; compute in ``compute_dtype``.

    Master weights are float32. Gradients are reduced in float32 by a forced plain sum: a loss is already divided by its
    global denominator, so nothing is averaged and nothing rescaled. Each replica holds the whole model over its shard
    ranks; those that share packs are shards, too, and each has its own tokens' part of the gradient. Experts that are
    split are parts of their own, sharded over the ranks that have the same ones.
    """
    checkpoint_layers(policy, activation_checkpointing)
    if compile:
        compile_layers(policy)
    precision = MixedPrecisionPolicy(
        param_dtype=compute_dtype, reduce_dtype=torch.float32, output_dtype=None, cast_forward_inputs=True
    )
    split = []
    if ranks.experts is not None:
        split = expert_stacks(policy)
        among = ranks.experts["replicate", "shard"] if ranks.mesh.ndim > 1 else ranks.experts["shard"]
        for experts in split:
            split_experts(experts, ranks.experts["expert"])
            fully_shard(experts, mesh=among, mp_policy=precision)
    for layer in policy.layers:
        fully_shard(layer, mesh=ranks.mesh, mp_policy=precision)
    # The policy's own inputs stay as they are: temperatures are float32, and FSDP looks into data classes.
    fully_shard(policy, mesh=ranks.mesh, mp_policy=replace(precision, cast_forward_inputs=False))
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # On gloo the factor alone is no supported reduction; elsewhere it saves a scaling pass.
            module.set_force_sum_reduction_for_comms(True)
    if split:
        _prefetch([[layer, *expert_stacks(layer)] for layer in policy.layers])
    policy.compute_dtype = compute_dtype
    policy.context = ranks.context


def _prefetch(layers: Sequence[Sequence[Any]]) -> None:
    """Gather a layer's weights, and its experts' if it has some, during the one before.

    It is asked for, since the host, which waits for the device in every layer, is not ahead of it.
    """
    for one, following in pairwise(layers):
        one[0].set_modules_to_forward_prefetch(list(following))
        following[0].set_modules_to_backward_prefetch(list(reversed(one)))


@contextmanager
def accumulating(policy: Policy, mode: Accumulation) -> Iterator[Callable[[bool], None]]:
    """A step's micro-batches; gives what is called before each, with whether it is the last.

        sharded     every micro-batch gathers weights twice, layer by layer, and reduces its gradients over the shards
        unsharded   a step gathers and reduces once; until then a rank holds all weights in the compute dtype and all
                    gradients in float32

    Replicas exchange gradients once a step either way: until then each shard keeps its own sum, as large as the shard.
    """
    assert isinstance(policy, FSDPModule)  # noqa: S101 - nothing trains that is not sharded
    sharded, whole = policy, mode == "unsharded"
    # Outside of a step, where no backward follows, layers give back what they gathered.
    _reshard_after_forward(policy, resharded=not whole)

    def begin(last: bool) -> None:  # noqa: FBT001 - all there is to say
        sharded.set_requires_gradient_sync(last or not whole)
        sharded.set_requires_all_reduce(last)
        sharded.set_reshard_after_backward(last or not whole)

    try:
        yield begin
    finally:
        begin(True)  # noqa: FBT003
        _reshard_after_forward(policy, resharded=True)


def _reshard_after_forward(policy: Policy, *, resharded: bool) -> None:
    for layer in policy.layers:
        if isinstance(layer, FSDPModule):
            layer.set_reshard_after_forward(resharded)
