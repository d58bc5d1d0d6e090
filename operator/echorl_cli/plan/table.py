"""The plan in words: a table a role, a verdict, and changes with what each would make of it."""

from dataclasses import replace

from echorl_cli.plan.engine_memory import Serving, engine_memory
from echorl_cli.plan.model_shape import GIB
from echorl_cli.plan.needs import Needs, changes
from echorl_cli.plan.trainer_memory import TrainerMemory, trainer_memory

Gpu = tuple[int, str]
"""A GPU's bytes, and who says so."""
_UNKNOWN = "of a GPU that nothing is known of: say --gpu-memory"


def _gib(amount: int) -> str:
    return f"{amount / GIB:,.2f}"


def _row(name: str, amount: int) -> str:
    return f"  {name:<58}{_gib(amount):>10}"


def trainer_lines(needs: Needs, gpu: Gpu | None) -> tuple[str, bool]:
    """The trainer's part, and whether it fits; also where nothing is known of its GPUs."""
    use = needs.training
    if use is None:
        return "trainer: on the CPU, no GPU holds anything", True
    memory = trainer_memory(needs.shape, use)
    copies = "" if use.shards == needs.ranks else f", {needs.ranks // use.shards} copies"
    tokens = f"{use.micro_batch_tokens:,} tokens a micro-batch"
    if use.context > 1:
        tokens += f" of {use.context} GPUs"
    if use.expert > 1:
        tokens += f", experts split over {use.expert}"
    lines = [
        f"trainer, GiB a GPU: {needs.ranks} GPUs, the model over {use.shards}{copies}, {tokens}",
        *_trainer_rows(memory, use.activation_checkpointing),
    ]
    in_host_memory = _host_rows(memory, use.serving_ranks)
    most = memory.total
    if needs.fewest_ranks:
        use = replace(use, shards=use.shards * needs.fewest_ranks // needs.ranks)
        needs = replace(needs, ranks=needs.fewest_ranks, training=use)
        most = trainer_memory(needs.shape, use).total
        lines.append(_row(f"with the {needs.fewest_ranks} GPUs of elastic.minReplicas", most))
    if gpu is None:
        return "\n".join([*lines, f"  {_UNKNOWN}", *in_host_memory]), True
    amount, source = gpu
    fits = most <= amount
    lines.append(f"  of {_gib(amount)} ({source}): {'fits' if fits else 'does not fit'}")
    if not fits:
        lines.append("  what could be changed, each by itself:")
        for change in changes(needs, amount):
            found = trainer_memory(needs.shape, change.training).total
            lines.append(f"{_row('  ' + change.words, found)}  {'fits' if found <= amount else 'does not fit'}")
        if use.adapter_parameters is None:
            lines.append("    model.lora: an adapter alone (in a new run)")
    return "\n".join([*lines, *in_host_memory]), fits


def _trainer_rows(memory: TrainerMemory, checkpointing: str) -> list[str]:
    rows = [
        ("master weights, float32", memory.master_weights),
        ("frozen weights", memory.frozen_weights),
        ("gradients", memory.gradients),
        ("optimizer state", memory.optimizer_state),
        ("gathered weights", memory.gathered_weights),
        (f"activations, checkpointing {checkpointing}", memory.activations),
        ("largest buffers, of the head or in backward", memory.buffers),
    ]
    lines = [_row(name, amount) for name, amount in rows if amount]
    lines.append(_row("together, with CUDA and what the allocator loses", memory.total))
    return lines


def _host_rows(memory: TrainerMemory, serving_ranks: int) -> list[str]:
    versions = "of rank 0: two policy versions" if serving_ranks == 1 else "its files of two policy versions, about"
    rows = [
        ("optimizer state", memory.host_state),
        ("a checkpoint's copy (checkpoint.asyncSave)", memory.host_checkpoint),
        ("copies of its state (checkpoint.memory)", memory.host_copies),
        (versions, memory.host_versions),
    ]
    return ["  in host memory, GiB a rank:", *(_row(f"  {name}", amount) for name, amount in rows if amount)]


def engine_lines(needs: Needs, gpu: Gpu | None) -> tuple[str, bool]:
    """The engines' part, and whether it fits; also where nothing is known of their GPUs."""
    use = needs.serving
    if use is None:
        return "engines: none on GPUs", True
    over = "1 GPU" if use.tensor_parallel == 1 else f"{use.tensor_parallel} GPUs"
    each = f"each over {over}, sequences of up to {use.max_model_len:,} tokens"
    memory = engine_memory(needs.shape, use, 0 if gpu is None else gpu[0])
    lines = [
        f"engines, GiB a GPU: {needs.engines}, {each}",
        _row("weights, those of layers in fp8" if use.fp8 else "weights", memory.weights),
        _row("workspace", memory.workspace),
    ]
    if gpu is None:
        return "\n".join([*lines, f"  {_UNKNOWN}"]), True
    amount, source = gpu
    lines.append(_row(f"KV cache: what is left of {use.gpu_share:.0%}", max(0, memory.cache)))
    lines.append(
        f"  of {_gib(amount)} ({source}): room for {memory.cache_tokens:,} tokens, {memory.sequences:,} sequences: "
        f"{'fits' if memory.fits else 'does not fit'}"
    )
    if not memory.fits:
        lines += _engine_changes(needs, use, memory.cache_tokens, amount)
    return "\n".join(lines), memory.fits


def _engine_changes(needs: Needs, use: Serving, tokens: int, amount: int) -> list[str]:
    lines = ["  what could be changed, each by itself:"]
    if tokens >= 16:
        lines.append(f"    model.maxModelLen: at most {tokens}")
    for split in (2, 4, 8):
        wider = replace(use, tensor_parallel=split)
        if split > use.tensor_parallel and engine_memory(needs.shape, wider, amount).fits:
            return [*lines, f"    inference.gpusPerReplica: {split}"]
    return lines
