"""What copies of the state cost the loop: a checkpoint's, written beside steps, and those kept in memory for a restart.

    PYTHONPATH=core:operator:orchestrator:trainer:. python3 -m benchmarks.checkpoint --out DIR

One rank with AdamW takes its state into host memory and writes it to ``DIR/state`` beside its next steps, as a trainer
does, and then into the slots of ``checkpoint.memory`` at the end of every step. ``DIR/checkpoint.json`` has the
medians; a table is printed last.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.distributed.checkpoint.state_dict_saver import async_save
from transformers import AutoConfig

from benchmarks.step.__main__ import drawn
from benchmarks.trainer_bench import ADAMW, Bench
from echorl_core.config import MemoryConfig
from echorl_core.memory_copies import RankMemory
from echorl_trainer.background import SWITCH_S, share_lock
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
MEMORY_STALL = "memory: the loop stands still"
MEMORY_STEP = "memory: a step and its copy"
PARTS = (FLOOR, STALL, WRITE, STEP, BESIDE, MEMORY_STALL, MEMORY_STEP)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results and what is written")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="0.6b")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
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
    batch = drawn(options, int(config.vocab_size))
    learner = bench.learner("bfloat16", ADAMW, compiled=not options.eager)
    state = TrainState(learner.policy, learner.optimizer, bench.ranks)
    copies, group = HostCopies(bench.ranks.device), dist.new_group(backend="gloo")
    learner.optimizer.register_step_pre_hook(lambda *_: copies.guard())

    def step() -> float:
        # The device is drained after it alone: a copy that is under way when it begins runs beside it.
        began = time.perf_counter()
        learner.runner.run(batch)
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
    flat = torch.empty(copies.size_bytes, dtype=torch.uint8, device=bench.ranks.device)
    seconds: dict[str, list[float]] = {part: [] for part in PARTS}
    for turn in range(1, options.repeats + 1):
        seconds[STEP].append(step())
        seconds[FLOOR].append(timed(bench, lambda: host.copy_(flat, non_blocking=True)))
        shutil.rmtree(options.out / "state")
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
    step: Callable[[], float],
    seconds: dict[str, list[float]],
) -> None:
    """Add to ``seconds`` those of steps each of which begins with a copy of the step before into memory."""
    memory = RankMemory(0)
    kept = MemoryConfig(every_steps=1, limit_bytes=1 << 62)
    copies = MemoryCopies(state, memory.slots, kept, ADAMW, deadline_s=60, health=Health(step_timeout_s=600))
    for turn in range(options.repeats + 2):  # the first two make the slots
        bench.synchronize()
        began = time.perf_counter()
        copies.begin(turn, Unfinished(report=None, save=False, last=False))
        stalled = time.perf_counter() - began
        step()
        if turn >= 2:
            seconds[MEMORY_STALL].append(stalled)
            seconds[MEMORY_STEP].append(time.perf_counter() - began)
    copies.wait()
    memory.close()


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    options = parse(arguments)
    share_lock(options.switch_s)
    options.out.mkdir(parents=True, exist_ok=True)
    transformers.utils.logging.disable_progress_bar()
    ranks = connect(device=options.device, timeout_s=120)
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(ranks, Path(temporary) / "model", Path(temporary), options.out, limit_s=1e9)
        write_seeded_model(bench.model, SHAPES[options.shape], options.seed)
        found, size = medians(bench, options)
    device = torch.cuda.get_device_name() if bench.cuda else "cpu"
    (options.out / "checkpoint.json").write_text(json.dumps({"bytes": size, "seconds": found}))
    print(
        f"{device}, torch {torch.__version__}, {options.shape}: {size / 1e9:.2f} GB of state\n| part | ms | ÷ floor |"
    )
    print("|---|---|---|")
    for part, value in found.items():
        print(f"| {part} | {value * 1e3:.1f} | {value / found[FLOOR]:.2f} |")
    print(f"a step and its copy to memory / a step: {found[MEMORY_STEP] / found[STEP]:.3f}")
    disconnect()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
