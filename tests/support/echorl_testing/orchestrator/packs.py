"""Small policies and hand-made micro-batches for tests of the trainer's numerics."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from echorl_core.config import LoraConfig, LossConfig, ModelConfig, OptimizerConfig
from echorl_core.routing import RouterShape
from echorl_core.wire.batch import MicroBatch, RankBatch, TokenRole
from echorl_trainer.loading import load_weights, start_policy
from echorl_trainer.losses import policy_loss
from echorl_trainer.model import Checkpointing, PackedTokens, Policy, meta_policy
from echorl_trainer.optimizer import build_optimizer, build_schedule
from echorl_trainer.parallel import Accumulation, Ranks, connect, disconnect
from echorl_trainer.seeded import Family, SeededShape, write_seeded_model
from echorl_trainer.step import StepRunner

SHAPE = SeededShape(
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    initializer_range=0.3,
    sliding_window=4,
)

SGD = OptimizerConfig(type="sgd", lr=1e-2, weight_decay=0.0, max_grad_norm=1e9)


def model_config(folder: Path, *, family: Family = "qwen3", tie: bool = False) -> ModelConfig:
    """Write a seeded model of ``SHAPE`` to ``folder`` unless it is there."""
    if not folder.exists():
        write_seeded_model(folder, SHAPE, 5, family=family, tie=tie)
    return ModelConfig(path=str(folder), dtype="float32", max_model_len=256, renderer="engine")


def tiny_policy(folder: Path, *, family: Family = "qwen3", tie: bool = False) -> Policy:
    """A policy of ``SHAPE``, not sharded."""
    return whole_policy(model_config(folder, family=family, tie=tie))


def whole_policy(config: ModelConfig) -> Policy:
    """A model folder on the CPU, not sharded."""
    policy = meta_policy(config)
    load_weights(policy, Path(config.path), torch.device("cpu"))
    return policy


def packed(documents: Sequence[Tensor], temperature: Tensor | None = None) -> PackedTokens:
    """All documents end to end; every token but the first of each is scored."""
    lengths = torch.tensor([len(document) for document in documents])
    positions = torch.cat([torch.arange(length) for length in lengths])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return PackedTokens(
        token_ids=torch.cat(list(documents)),
        positions=positions,
        cu_seqlens=offsets.to(torch.int32),
        max_len=int(lengths.max()),
        rows=positions.nonzero()[:, 0],
        temperature=torch.ones(len(positions)) if temperature is None else temperature,
    )


def document(seed: int, length: int, *, version: int = 0, environment: str = "a", echo: bool = True) -> MicroBatch:
    """One document: two context tokens, then spans of actions and of environment output by turns."""
    generator = np.random.default_rng(seed)
    position = np.arange(length)
    role = np.where((position // 3) % 2 == 0, TokenRole.ACTION, TokenRole.ENV_OUTPUT).astype(np.uint8)
    role[:2] = TokenRole.CONTEXT
    action, output = role == TokenRole.ACTION, role == TokenRole.ENV_OUTPUT
    return MicroBatch(
        sample_ids=[f"e{seed}/0"],
        environments=[environment],
        lengths=np.array([length], np.int32),
        token_ids=generator.integers(0, 265, length).astype(np.int32),
        role=role,
        logprobs=np.where(action, -5.0 + generator.normal(size=length), 0).astype(np.float32),
        version_low=np.where(action, version, -1).astype(np.int32),
        version_high=np.where(action, version, -1).astype(np.int32),
        rl_weight=action.astype(np.float32),
        ce_weight=(0.05 * output * echo).astype(np.float32),
        advantage=np.where(action, generator.normal(), 0).astype(np.float32),
        temperature=np.full(length, 0.8, np.float32),
    )


def joined(parts: Sequence[MicroBatch]) -> MicroBatch:
    """Several micro-batches packed into one; with a teacher's logprobs where all have them."""
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in MicroBatch.__struct_fields__
        if name not in ("sample_ids", "environments", "ref_logprobs", "tool", "tool_names", "rewards", "ce_mask")
        and name not in ("experts", "routed_tokens")
    }
    routed = [part.experts for part in parts if part.experts is not None]
    taught = [part.ref_logprobs for part in parts if part.ref_logprobs is not None]
    return MicroBatch(
        ref_logprobs=np.concatenate(taught) if len(taught) == len(parts) else None,
        sample_ids=[name for part in parts for name in part.sample_ids],
        environments=[name for part in parts for name in part.environments],
        experts=np.concatenate(routed) if routed else None,
        routed_tokens=[told for part in parts for told in part.routed_tokens or [0]] if routed else [],
        **columns,
    )


def routed(micro: MicroBatch, shape: RouterShape, tokens: int, seed: int = 0) -> MicroBatch:
    """The document with experts of its first ``tokens`` tokens, drawn without regard to any router."""
    generator = np.random.default_rng((seed, len(micro.token_ids)))
    drawn = generator.random((tokens, shape.layers, shape.experts)).argsort(axis=-1)[..., : shape.top_k]
    return msgspec.structs.replace(micro, experts=drawn.astype(shape.dtype).ravel(), routed_tokens=[tokens])


def denominators(parts: Sequence[MicroBatch]) -> dict[str, float]:
    """Tokens with a weight, by component."""
    return {
        "rl": float(sum((part.rl_weight != 0).sum() for part in parts)),
        "ce": float(sum((part.ce_weight != 0).sum() for part in parts)),
    }


def rank_batch(
    micro_batches: Sequence[MicroBatch],
    totals: dict[str, float],
    *,
    step: int = 1,
    rank: int = 0,
    num_ranks: int = 1,
) -> RankBatch:
    """A step's batch of one rank."""
    return RankBatch(
        run_uid="u",
        attempt=1,
        step=step,
        rank=rank,
        num_ranks=num_ranks,
        denominators=totals,
        checkpoint=False,
        last=False,
        micro_batches=list(micro_batches),
    )


@dataclass
class Learner:
    """A sharded policy, its runner, and the gradient that the last optimizer step saw."""

    policy: Policy
    ranks: Ranks
    optimizer: torch.optim.Optimizer
    runner: StepRunner
    gradient: dict[str, Tensor]

    def weights(self) -> dict[str, Tensor]:
        """Whole parameters by name, copied."""
        return {name: whole(parameter) for name, parameter in self.policy.named_parameters()}


def whole(tensor: Tensor) -> Tensor:
    """A copy of the unsharded tensor on the CPU; collective."""
    detached = tensor.detach()
    return (detached.full_tensor() if isinstance(detached, DTensor) else detached).to("cpu", copy=True)


def distance(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """``||left - right|| / ||right||`` over all tensors together."""
    assert left.keys() == right.keys()
    difference = sum(float((left[name] - right[name]).double().square().sum()) for name in right)
    return float((difference / sum(float(value.double().square().sum()) for value in right.values())) ** 0.5)


@contextmanager
def learner(
    folder: Path,
    *,
    family: Family = "qwen3",
    tie: bool = False,
    optimizer: OptimizerConfig = SGD,
    loss: LossConfig | None = None,
    replicate: int = 1,
    device: Literal["cpu", "cuda"] = "cpu",
    compute_dtype: torch.dtype = torch.float32,
    compiled: bool = False,
    checkpointing: Checkpointing = "none",
    lora: LoraConfig | None = None,
    accumulation: Accumulation = "sharded",
    context: int = 1,
    expert: int = 1,
) -> Iterator[Learner]:
    """A policy of ``SHAPE`` sharded over the ranks of torchrun's variables, or over one."""
    config = model_config(folder, family=family, tie=tie).model_copy(
        update={"dtype": str(compute_dtype).removeprefix("torch."), "lora": lora}
    )
    ranks = connect(replicate, device, 60.0, context=context, expert=expert)
    try:
        policy = start_policy(config, ranks, seed=0, compile=compiled, activation_checkpointing=checkpointing)
        chosen = build_optimizer(policy, optimizer)
        schedule = build_schedule(chosen, optimizer, 10)
        rl_loss = policy_loss(loss or LossConfig())
        runner = StepRunner(policy, chosen, schedule, rl_loss, ranks, optimizer.max_grad_norm, accumulation)
        seen: dict[str, Tensor] = {}

        def keep(*_: object) -> None:
            seen.update({name: whole(p.grad) for name, p in policy.named_parameters() if p.grad is not None})

        chosen.register_step_pre_hook(keep)
        yield Learner(policy, ranks, chosen, runner, seen)
    finally:
        disconnect()
