"""What copies of the state cost the loop: a checkpoint's, written beside steps, and those kept in memory for a restart.

    PYTHONPATH=core:operator:orchestrator:trainer:. python3 -m benchmarks.checkpoint --out DIR

Each rank, with AdamW, takes its state into host memory and writes it to ``DIR/state`` beside its next steps, as a
trainer does, and then into the slots of ``checkpoint.memory``, before a step and beside it. ``DIR/checkpoint.json`` has
the first rank's medians; a table is printed last.
"""

import argparse
import dataclasses
import itertools
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from msgspec.structs import replace
from torch.distributed.checkpoint.state_dict_saver import async_save
from transformers import AutoConfig

from benchmarks.long_context import run_gang
from benchmarks.step.__main__ import drawn
from benchmarks.trainer_bench import ADAMW, Bench
from echorl_core.config import MemoryConfig
from echorl_core.memory_copies import RankMemory
from echorl_trainer.background import SWITCH_S, share_lock
from echorl_trainer.ending import end
from echorl_trainer.health import Health
from echorl_trainer.memory import MemoryCopies, Unfinished
from echorl_trainer.parallel import connect, disconnect
from echorl_trainer.seeded import SHAPES, write_seeded_model
from echorl_trainer.shard_writer import ShardWriter
from echorl_trainer.staging import HostCopies
from echorl_trainer.state import TrainState

FLOOR = "floor: copy to host memory"
STALL = "the loop stands still"
WRITE = "written after"
STEP = "a step"
BESIDE = "a step beside the write"
MEMORY_ALONE = "memory: a step"
MEMORY_STALL = "memory: the call that begins a copy"
MEMORY_STEP = "memory: a step behind that call"
MEMORY_BESIDE = "memory: a step that has it behind its first micro-batch"
PARTS = (FLOOR, STALL, WRITE, STEP, BESIDE, MEMORY_ALONE, MEMORY_STALL, MEMORY_STEP, MEMORY_BESIDE)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results and what is written")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="0.6b")
    parser.add_argument("--layers", type=int, help="other than the shape's: as many tensors as a large model has")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--ranks", type=int, default=1, help="that share the state, one a GPU")
    parser.add_argument("--tokens", type=int, default=16_384, help="of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--switch-s", type=float, default=SWITCH_S, help="after which Python's lock is given away")
    parser.add_argument("--eager", action="store_true", help="layers are not compiled")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def timed(bench: Bench, work: Callable[[], Any]) -> float:
    """Seconds of the work, the device's queue drained before and after."""
    bench.synchronize()
    began = time.perf_counter()
    work()
    bench.synchronize()
    return time.perf_counter() - began


def medians(bench: Bench, options: argparse.Namespace) -> tuple[dict[str, float], int]:
    """Seconds by part, and the bytes of a copy."""
    config = AutoConfig.from_pretrained(bench.model, local_files_only=True)
    ranks = bench.ranks
    whole = drawn(options, int(config.vocab_size), options.micro_batches)
    batch = replace(whole, rank=ranks.data_rank, num_ranks=ranks.num_data_ranks)
    learner = bench.learner("bfloat16", ADAMW, compiled=not options.eager)
    state = TrainState(learner.policy, learner.optimizer, ranks)
    copies, group = HostCopies(ranks.device), dist.new_group(backend="gloo")
    learner.optimizer.register_step_pre_hook(lambda *_: copies.guard())

    def step(beside: Callable[[], None] = lambda: None) -> float:
        # The device is drained after it alone: a copy that is under way when it begins runs beside it.
        began = time.perf_counter()
        learner.runner.run(batch, beside=beside)
        bench.synchronize()
        return time.perf_counter() - began

    def save(turn: int) -> "Future[Any]":
        writer = ShardWriter(options.out / "state", sync_files=False, ready=copies.wait)
        found = async_save(state.collect(turn), storage_writer=writer, process_group=group, async_stager=copies)
        assert isinstance(found, Future)  # noqa: S101 - only other stagers answer otherwise
        return found

    step()
    save(0).result()
    host = torch.empty(copies.size_bytes, dtype=torch.uint8, pin_memory=bench.cuda)
    flat = torch.empty(copies.size_bytes, dtype=torch.uint8, device=ranks.device)
    seconds: dict[str, list[float]] = {part: [] for part in PARTS}
    for turn in range(1, options.repeats + 1):
        seconds[STEP].append(step())
        seconds[FLOOR].append(timed(bench, lambda: host.copy_(flat, non_blocking=True)))
        if ranks.rank == 0:
            shutil.rmtree(options.out / "state")
        dist.barrier(group)
        bench.synchronize()
        began = time.perf_counter()
        upload = save(turn)
        taken = time.perf_counter()
        seconds[STALL].append(taken - began)
        beside = step()
        if not upload.done():  # else the step was alone for a part of its time
            seconds[BESIDE].append(beside)
        upload.result()
        seconds[WRITE].append(time.perf_counter() - taken)
    held_in_memory(bench, options, state, step, seconds)
    return {part: statistics.median(found) for part, found in seconds.items() if found}, copies.size_bytes


def held_in_memory(
    bench: Bench,
    options: argparse.Namespace,
    state: TrainState,
    step: Callable[..., float],
    seconds: dict[str, list[float]],
) -> None:
    """Add to ``seconds`` those of steps without and with a copy of the step before into memory, by turns."""
    memory = RankMemory(bench.ranks.rank)
    kept = MemoryConfig(every_steps=1, limit_bytes=1 << 62)
    copies = MemoryCopies(state, memory.slots, kept, ADAMW, deadline_s=60, health=Health(step_timeout_s=600))
    turns = itertools.count()

    def copy() -> float:
        began = time.perf_counter()
        copies.begin(next(turns), Unfinished(report=None, save=False, last=False))
        return time.perf_counter() - began

    for turn in range(options.repeats + 1):  # the first makes the slots
        alone = step()
        stalled = copy()
        behind = stalled + step()
        beside = step(copy)
        copies.wait()
        if turn:
            found = {MEMORY_ALONE: alone, MEMORY_STALL: stalled, MEMORY_STEP: behind, MEMORY_BESIDE: beside}
            for part, taken in found.items():
                seconds[part].append(taken)
    memory.close()


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    model = options.out / "model"
    if not model.exists():
        shape = SHAPES[options.shape]
        layers = options.layers or shape.num_layers
        write_seeded_model(model, dataclasses.replace(shape, num_layers=layers), options.seed)
    if options.ranks > 1 and "RANK" not in os.environ:
        return 1 if any(run_gang("benchmarks.checkpoint", arguments, options.ranks)) else 0
    share_lock(options.switch_s)
    transformers.utils.logging.disable_progress_bar()
    ranks = connect(device=options.device, timeout_s=120)
    bench = Bench(ranks, model, options.out, options.out, limit_s=1e9)
    found, size = medians(bench, options)
    if ranks.rank == 0:
        show(bench, found, size, options)
    disconnect()
    return 0


def show(bench: Bench, found: dict[str, float], size: int, options: argparse.Namespace) -> None:
    """Write and print the medians."""
    device = torch.cuda.get_device_name() if bench.cuda else "cpu"
    (options.out / "checkpoint.json").write_text(json.dumps({"bytes": size, "seconds": found}))
    print(
        f"{device}, torch {torch.__version__}, {options.shape}, ranks {options.ranks}: a rank has {size / 1e9:.2f} GB"
    )
    print("| part | ms | ÷ floor |\n|---|---|---|")
    for part, value in found.items():
        print(f"| {part} | {value * 1e3:.1f} | {value / found[FLOOR]:.2f} |")
    for part in (MEMORY_STEP, MEMORY_BESIDE):
        print(f"{part} / a step: {found[part] / found[MEMORY_ALONE]:.3f}")


if __name__ == "__main__":
    end(main(sys.argv[1:]))
