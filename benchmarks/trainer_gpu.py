"""The trainer alone on one GPU, on recorded batches: does bfloat16 agree with float32, how fast, and who waits.

    PYTHONPATH=core:trainer:. python -m benchmarks.trainer_gpu --out DIR

Builds a seeded Qwen3-shaped model and recordings in a temporary folder, then runs parts that fail one by one:
``agreement``, ``speed``, ``trace`` and, where asked for, ``compiled``. ``DIR/trainer_gpu.jsonl`` gets a line a part,
``DIR/profile.txt`` the profiler's table; a readable table is printed last.
"""

import argparse
import faulthandler
import json
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch
import transformers

from benchmarks.trainer_agreement import agreement
from benchmarks.trainer_bench import FROZEN, Bench
from benchmarks.trainer_speed import Repeats, speed
from benchmarks.trainer_table import table
from benchmarks.trainer_trace import trace
from benchmarks.trainer_workload import Mix, micro_batch, rank_batch, record, repacked, with_sampler
from echorl_trainer.ending import end
from echorl_trainer.model import Checkpointing
from echorl_trainer.parallel import connect
from echorl_trainer.seeded import SHAPES, write_seeded_model

PARTS = ("agreement", "speed", "trace")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="0.6b")
    parser.add_argument("--untied", action="store_true", help="an output head of its own; Qwen3-0.6B has none")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--tokens", type=int, default=32_768, help="of a micro-batch")
    parser.add_argument("--median", type=int, help="document length; default: a twelfth of --tokens")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--agreement-tokens", type=int, help="default: a quarter of --tokens")
    parser.add_argument("--warmups", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=6, help="timed steps of each workload")
    parser.add_argument("--checkpointing", nargs="+", choices=["none", "selective", "full"], default=["none", "full"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--compile", action="store_true", help="also time compiled layers, where time is left")
    parser.add_argument("--model", type=Path, help="a model folder to use instead of a seeded one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=400.0, help="for everything")
    return parser.parse_args(arguments)


def write_recordings(bench: Bench, options: argparse.Namespace) -> None:
    """Three recordings: both workloads of a step, and a small pack; logprobs from the float32 model."""
    begin = time.monotonic()
    learner = bench.learner("float32", FROZEN)
    loaded = time.monotonic()
    generator = np.random.default_rng(options.seed)
    vocab_size = int(learner.policy.model.config.vocab_size)
    median = options.median or max(32, options.tokens // 12)
    mix = Mix(tokens=options.tokens, median=median, vocab_size=vocab_size)
    small = replace(mix, tokens=options.agreement_tokens or options.tokens // 4, median=max(32, options.tokens // 32))
    drawn = [micro_batch(mix, generator, f"m{index}") for index in range(options.micro_batches)]
    micros = [with_sampler(micro, learner.policy, bench.ranks, generator) for micro in drawn]
    pack = with_sampler(micro_batch(small, generator, "agreement"), learner.policy, bench.ranks, generator)
    size = record(bench.recordings / "rl+echo", rank_batch(micros, echo=True))
    record(bench.recordings / "rl", rank_batch(micros, echo=False))
    record(bench.recordings / "agreement", rank_batch([pack], echo=True))
    record(bench.recordings / "agreement-repacked", rank_batch(repacked(pack), echo=True))
    lengths = np.concatenate([micro.lengths for micro in micros])
    bench.report(
        "recordings",
        load_s=loaded - begin,
        forward_and_write_s=time.monotonic() - loaded,
        bytes=size,
        documents=len(lengths),
        document_tokens={"median": float(np.median(lengths)), "longest": int(lengths.max())},
        mean_logprob=float(np.concatenate([m.logprobs[m.rl_weight != 0] for m in micros]).mean()),
    )


def run_parts(bench: Bench, options: argparse.Namespace) -> None:
    """Every part that was asked for, the most wanted first."""
    repeats = Repeats(options.warmups, options.repeats)
    modes: list[Checkpointing] = options.checkpointing
    fits: Checkpointing | None = None
    if "agreement" in options.parts:
        bench.attempt("agreement", partial(agreement, bench), 150)
    if "speed" in options.parts:
        first = modes[0]
        fits = first if bench.attempt(f"speed {first}", partial(speed, bench, first, repeats), 120) else None
    if "trace" in options.parts:
        mode = fits or modes[-1]
        bench.attempt(f"trace {mode}", partial(trace, bench, mode), 120)
    for mode in modes[1:] if "speed" in options.parts else ():
        if bench.attempt(f"speed {mode}", partial(speed, bench, mode, repeats), 120):
            fits = fits or mode
    if options.compile:
        mode = fits or modes[-1]
        bench.attempt("speed compiled", partial(speed, bench, mode, repeats, compiled=True), 180)


def describe(bench: Bench, options: argparse.Namespace, built_s: float) -> None:
    """What was measured, on what."""
    properties: dict[str, Any] = {}
    if bench.cuda:
        found = torch.cuda.get_device_properties(bench.ranks.device)
        properties = {"name": found.name, "memory_gib": found.total_memory / (1 << 30), "cuda": torch.version.cuda}
    bench.report(
        "setup",
        torch=torch.__version__,
        transformers=transformers.__version__,
        device=properties or {"name": "cpu", "threads": torch.get_num_threads()},
        options={name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()},
        build_model_s=built_s,
    )


def main(arguments: list[str]) -> int:
    """Run the benchmark; 1 when a part failed."""
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "trainer_gpu.jsonl").unlink(missing_ok=True)
    # A kernel that never ends cannot be interrupted from Python.
    faulthandler.dump_traceback_later(options.limit_s + 45, exit=True)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    transformers.utils.logging.disable_progress_bar()
    ranks = connect(device=options.device, timeout_s=120)
    with tempfile.TemporaryDirectory() as temporary:
        model = options.model or Path(temporary) / "model"
        bench = Bench(ranks, model, Path(temporary) / "recordings", options.out, options.limit_s)
        begin = time.monotonic()
        if options.model is None:
            write_seeded_model(model, SHAPES[options.shape], options.seed, tie=not options.untied)
        describe(bench, options, time.monotonic() - begin)
        if bench.attempt("recordings", partial(write_recordings, bench, options), 150):
            run_parts(bench, options)
    rows = [json.loads(line) for line in (options.out / "trainer_gpu.jsonl").read_text().splitlines()]
    print(text := table(rows))
    (options.out / "trainer_gpu.txt").write_text(f"{text}\n")
    return int(any("failed" in row for row in rows))


if __name__ == "__main__":
    end(main(sys.argv[1:]))
