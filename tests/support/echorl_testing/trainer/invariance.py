"""What a rank does in the tests that compare numbers of ranks; importable by spawned processes."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from echorl_core.config import LoraConfig, LossConfig, OptimizerConfig
from echorl_core.routing import RouterShape, router_shape
from echorl_core.wire.batch import MicroBatch, RankBatch
from echorl_testing.orchestrator.packs import denominators, document, joined, learner, rank_batch, routed, whole
from echorl_trainer.copier import Copier
from echorl_trainer.host_files import file_layouts
from echorl_trainer.lora import published_parameters
from echorl_trainer.losses import policy_loss
from echorl_trainer.model import Checkpointing
from echorl_trainer.optimizer import build_schedule
from echorl_trainer.parallel import Accumulation
from echorl_trainer.probe import probe_logprobs
from echorl_trainer.snapshots import Snapshots
from echorl_trainer.step import NonFinite, StepOutcome, StepRunner

LENGTHS = (9, 14, 9, 5, 20, 14, 7)


def documents(step: int) -> list[MicroBatch]:
    """The seven documents of a step."""
    return [
        document(100 * step + index, length, version=step - 1, environment="ab"[index % 2])
        for index, length in enumerate(LENGTHS)
    ]


def dummy(micro: MicroBatch) -> MicroBatch:
    """The same tokens, nothing trained or measured, and no teacher asked."""
    zeros = np.zeros(len(micro.token_ids), np.float32)
    role = np.zeros(len(zeros), np.uint8)
    return msgspec.structs.replace(
        micro, rl_weight=zeros, ce_weight=zeros, advantage=zeros, role=role, ref_logprobs=None
    )


def taught(micro: MicroBatch) -> MicroBatch:
    """The document as mode opd has it: logprobs of a teacher, no ECHO."""
    spread = np.linspace(-1.0, 1.0, len(micro.token_ids), dtype=np.float32)
    return msgspec.structs.replace(
        micro, ce_weight=np.zeros(len(spread), np.float32), ref_logprobs=(micro.logprobs + spread).astype(np.float32)
    )


def told(micro: MicroBatch) -> MicroBatch:
    """The document with its cross-entropy alone, as of mode sft, or of ECHO where filters took all RL away."""
    zeros = np.zeros(len(micro.token_ids), np.float32)
    return msgspec.structs.replace(micro, rl_weight=zeros, advantage=zeros)


def batch(step: int, rank: int, num_ranks: int, *, bad: bool = False, routing: RouterShape | None = None) -> RankBatch:
    """This rank's share, of one, two or four: documents in unequal parts, the last ranks filled up with dummies.

    ``routing``: experts are given, of all tokens of most documents, of half of some, of none of one.
    """
    parts = documents(step)
    if routing is not None:
        told = [length if number % 3 else length // 2 for number, length in enumerate(LENGTHS[:-1])]
        parts[:-1] = [routed(part, routing, count, step) for part, count in zip(parts, told, strict=False)]
    totals = denominators(parts)
    if bad:
        parts[-1] = msgspec.structs.replace(parts[-1], advantage=np.full(LENGTHS[-1], np.nan, np.float32))
    shares: list[Sequence[MicroBatch]] = [[joined(parts[:3]), joined(parts[3:])]]
    if num_ranks == 4:
        alone = [[part, dummy(part)] for part in parts[5:]]
        shares = [[joined(parts[:2]), parts[2]], [parts[3], parts[4]], *alone]
    elif num_ranks > 1:
        shares = [[joined(parts[:4]), joined(parts[4:6])], [parts[6], dummy(parts[6])]]
    return rank_batch(shares[rank], totals, step=step, rank=rank, num_ranks=num_ranks)


def train(
    folder: Path,
    config: OptimizerConfig,
    steps: int,
    replicate: int = 1,
    device: Literal["cpu", "cuda"] = "cpu",
    lora: LoraConfig | None = None,
    context: int = 1,
    accumulation: Accumulation = "sharded",
    expert: int = 1,
    checkpointing: Checkpointing = "none",
    replayed: bool = False,
) -> dict[str, Any]:
    """Train ``steps`` steps; first gradient, final weights, optimizer state and outcomes.

    ``replayed``: with experts that are given.
    """
    routing = router_shape(folder) if replayed else None
    options: dict[str, Any] = {"context": context, "accumulation": accumulation, "expert": expert}
    options["checkpointing"] = checkpointing
    with learner(folder, optimizer=config, replicate=replicate, device=device, lora=lora, **options) as one:
        rank, num_ranks = one.ranks.data_rank, one.ranks.num_data_ranks
        outcomes: list[StepOutcome] = []
        first: dict[str, Tensor] = {}
        for step in range(1, steps + 1):
            outcome = one.runner.run(batch(step, rank, num_ranks, routing=routing))
            first = first or dict(one.gradient)
            outcomes.append(dataclasses.replace(outcome, seconds={}))
        names: dict[Tensor, str] = {parameter: name for name, parameter in one.policy.named_parameters()}
        state = {
            f"{names[parameter]}.{key}": whole(value)
            for parameter, values in one.optimizer.state.items()
            for key, value in values.items()
            if isinstance(value, DTensor)
        }
        return {
            "gradient": plain(first),
            "weights": plain(one.weights()),
            "state": plain(state),
            "outcomes": [(o.metrics, o.gap, o.trained_tokens, o.packed_tokens) for o in outcomes],
            "probe": probe_logprobs(one.policy, one.ranks, [3, 1, 200, 17]),
            "published": plain(published(one)),
            "mesh": tuple(one.ranks.mesh.mesh.shape),
        }


def published(one: Any) -> dict[str, Tensor]:
    """What readers get of the learner's policy, on rank 0; nothing elsewhere. Collective."""
    parameters = published_parameters(one.policy)
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    layouts = file_layouts(shapes, one.policy.dtype, single_name="all")
    snapshot = None
    if one.ranks.rank == 0:
        snapshot = Snapshots(layouts, {}, pinned=False).take(0, timeout_s=0, check=lambda: None)
    Copier(layouts, one.ranks.device).copy(parameters, snapshot)
    return {} if snapshot is None else snapshot.files[0].tensors()


def poisoned(folder: Path) -> tuple[str, bool]:
    """The message that a NaN on the last rank gives, and whether this rank's weights stayed."""
    rank, num_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    with learner(folder, optimizer=OptimizerConfig(lr=1.0)) as one:
        before = one.weights()
        try:
            one.runner.run(batch(1, rank, num_ranks, bad=True))
        except NonFinite as error:
            kept = all(torch.equal(value, before[name]) for name, value in one.weights().items())
            return str(error), kept and not one.optimizer.state
        return "no error", False


def plain(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """As arrays, which travel between processes by value; numpy has no bfloat16."""
    wide = {name: one.float() if one.dtype == torch.bfloat16 else one for name, one in tensors.items()}
    return {name: tensor.numpy() for name, tensor in wide.items()}


def by_loss(folder: Path, losses: list[LossConfig | None], context: int = 1) -> list[dict[str, Any]]:
    """The gradient of each loss, None: of cross-entropy alone; of two batches the second has nothing that trains.

    Weights stay as they are.
    """
    still = OptimizerConfig(type="sgd", lr=0.0, weight_decay=0.0, max_grad_norm=1e9)
    found = []
    with learner(folder, optimizer=still, context=context) as one:
        rank, num_ranks = one.ranks.data_rank, one.ranks.num_data_ranks
        schedule = build_schedule(one.optimizer, still, 10)
        for config in losses:
            parts = documents(1)
            if config is None or config.type == "opd":
                parts = [(told if config is None else taught)(part) for part in parts]
            shares = [[joined(parts[:3]), joined(parts[3:])], [dummy(parts[6]), dummy(parts[5])]]
            loss = policy_loss(config or LossConfig())
            runner = StepRunner(one.policy, one.optimizer, schedule, loss, one.ranks, 1e9)
            runner.run(rank_batch(shares[rank], denominators(parts), rank=rank, num_ranks=num_ranks))
            found.append(plain(dict(one.gradient)))
    return found
