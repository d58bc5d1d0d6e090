"""A manifest's roles as numbers for the plan's arithmetic, and what else a user could choose."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from echorl_cli.plan.engine_memory import Serving
from echorl_cli.plan.model_shape import BFLOAT16, FLOAT32, ModelShape
from echorl_cli.plan.trainer_memory import Training, adapter_parameters, trainer_memory
from echorl_core.config import TrainerConfig
from echorl_manifest import EchoRLRun
from echorl_manifest.compile.placement import example_placement
from echorl_manifest.compile.role_configs import num_ranks, role_configs
from echorl_manifest.rules.modes import num_engines
from echorl_manifest.rules.trainer import gang_sizes

_BYTES = {"float32": FLOAT32, "bfloat16": BFLOAT16}
_MOST_GPUS = 64
"""Times as many as a manifest has, up to which more of them are proposed."""


@dataclass(frozen=True)
class Needs:
    """What a run asks of its GPUs."""

    shape: ModelShape
    training: Training | None
    """None: the trainer runs on the CPU."""
    ranks: int
    max_model_len: int
    serving: Serving | None
    """None: there are no engines, or they run on the CPU."""
    engines: int
    fewest_ranks: int = 0
    """Of an elastic gang; 0: it always has ``ranks``."""


def needs_of(run: EchoRLRun, shape: ModelShape, longest: int | None) -> Needs:
    """The run's roles as numbers. ``longest``: sequence that the model takes; None: unknown."""
    spec, ranks = run.spec, num_ranks(run.spec)
    configs = role_configs(run, replace(example_placement(run), model_max_len=longest))
    engines = num_engines(spec)
    max_model_len = configs.trainer.model.max_model_len
    training = serving = None
    if spec.trainer.gpus_per_replica:
        parallel = spec.trainer.parallel
        training = _training(configs.trainer, shape, ranks // parallel.replicate)
    if engines and spec.inference.gpus_per_replica:
        split = configs.inference[0].tensor_parallel
        fp8 = spec.inference.quantization == "fp8"
        serving = Serving(split, max_model_len, _BYTES[spec.model.dtype], fp8)
        if (share := _gpu_share(spec.inference.extra_args)) is not None:
            serving = replace(serving, gpu_share=share)
    fewest = gang_sizes(spec)[-1] * max(1, spec.trainer.gpus_per_replica) if spec.trainer.elastic else 0
    return Needs(shape, training, ranks, max_model_len, serving, engines, fewest)


def _training(config: TrainerConfig, shape: ModelShape, shards: int) -> Training:
    lora, optimizer = config.model.lora, config.optimizer
    is_shared = config.weight_mode != "disk" and lora is None
    return Training(
        shards=shards,
        micro_batch_tokens=config.seq_len,
        context=config.context,
        expert=config.expert,
        compute_bytes=_BYTES[config.model.dtype],
        optimizer=optimizer.type,
        state_dtype=optimizer.state_dtype,
        cpu_offload=optimizer.cpu_offload,
        activation_checkpointing=config.activation_checkpointing,
        gradient_accumulation=config.gradient_accumulation,
        async_save=config.async_save,
        memory_copies=0 if config.memory is None else 5 if config.memory.mirror else 2,
        adapter_parameters=None if lora is None else adapter_parameters(shape, lora.rank, tuple(lora.target_modules)),
        serving_ranks=shards if is_shared else 1,
    )


def _gpu_share(arguments: tuple[str, ...]) -> float | None:
    """What ``--gpu-memory-utilization`` is set to among an engine's further arguments; None: to nothing of use."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    try:
        share = float(words[words.index("--gpu-memory-utilization") + 1])
    except (ValueError, IndexError):
        return None
    return share if 0 < share <= 1 else None


@dataclass(frozen=True)
class Change:
    """Something else that a user could choose."""

    words: str
    training: Training


def changes(needs: Needs, gpu_bytes: int) -> Iterator[Change]:
    """What could be changed of a trainer, the cheapest first; at last the fewest GPUs on which it fits unchanged."""
    use = needs.training
    if use is None:
        return
    keeps_moments = use.optimizer in {"adamw", "muon"}
    if use.gradient_accumulation == "unsharded":
        yield Change("trainer.gradientAccumulation: sharded", replace(use, gradient_accumulation="sharded"))
    if needs.ranks > use.shards:
        yield Change("trainer.parallel.replicate: 1", replace(use, shards=needs.ranks))
    if use.micro_batch_tokens > needs.max_model_len:
        shorter = replace(use, micro_batch_tokens=needs.max_model_len)
        yield Change(f"trainer.seqLen: {needs.max_model_len}", shorter)
    if use.activation_checkpointing != "full":
        yield Change("trainer.activationCheckpointing: full", replace(use, activation_checkpointing="full"))
    yield from _divided(needs, use, gpu_bytes)
    if keeps_moments and not use.cpu_offload:
        yield Change("trainer.optimizer.cpuOffload: true", replace(use, cpu_offload=True))
    if keeps_moments and use.state_dtype != "int8":
        yield Change("trainer.optimizer.stateDtype: int8 (in a new run)", replace(use, state_dtype="int8"))
    more = range(2, _MOST_GPUS + 1)
    wider = ((times, replace(use, shards=use.shards * times)) for times in more)
    fitting = next(((times, one) for times, one in wider if trainer_memory(needs.shape, one).total <= gpu_bytes), None)
    if fitting is not None:
        yield Change(f"{needs.ranks * fitting[0]} GPUs", fitting[1])


def _divided(needs: Needs, use: Training, gpu_bytes: int) -> Iterator[Change]:
    """The fewest ranks to share a pack, and the fewest to split experts over, with which it fits."""
    shape = needs.shape
    shared, split = (use.context, shape.num_attention_heads), (use.expert, shape.num_experts)
    for key, (now, number) in (("context", shared), ("expert", split)):
        for size in range(now + 1, use.shards + 1):
            sizes: dict[str, Any] = {key: size}
            changed = replace(use, **sizes)
            if use.shards % size == number % size == 0 and trainer_memory(shape, changed).total <= gpu_bytes:
                yield Change(f"trainer.parallel.{key}: {size}", changed)
                break
