"""Whole optimizer steps on recorded-like batches: ours beside transformers with flex_attention and torch.compile.

    PYTHONPATH=core:operator:orchestrator:trainer python3 -m benchmarks.step --out DIR

Sides take turns in one process, on the same documents and the same seeded weights, all in bfloat16 with float32 master
weights and AdamW. ``DIR/step.jsonl`` gets a line a side; a table is printed last.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from msgspec.structs import replace
from transformers import AutoConfig

from benchmarks.step.peer import Peer
from benchmarks.trainer_bench import ADAMW, Bench
from benchmarks.trainer_speed import matmul_ceiling, model_flops, run_timed
from benchmarks.trainer_workload import Mix, micro_batch, rank_batch
from echorl_core.wire.batch import RankBatch, TokenRole
from echorl_trainer.attention import kernel_name
from echorl_trainer.ending import end
from echorl_trainer.model import Checkpointing
from echorl_trainer.parallel import connect, disconnect
from echorl_trainer.seeded import SHAPES, write_seeded_model

GIB = float(1 << 30)
PEER = "transformers, flex, compiled"
OURS: dict[str, Checkpointing] = {"ours": "none", "ours, selective": "selective", "ours, full": "full"}
Step = Callable[[RankBatch], float]


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="0.6b")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--tokens", type=int, default=32_768, help="of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--sides", nargs="+", choices=[PEER, *OURS], default=[PEER, "ours", "ours, selective"])
    parser.add_argument("--eager", action="store_true", help="our layers are not compiled")
    parser.add_argument("--repeats", type=int, default=6, help="timed steps of each side")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def drawn(options: argparse.Namespace, vocab_size: int, micro_batches: int, median: int | None = None) -> RankBatch:
    """The batch; sampled as by a model that knows nothing, which is what a seeded one is.

    ``median``: tokens of a document; by default a twelfth of a micro-batch.
    """
    generator = np.random.default_rng(options.seed)
    mix = Mix(options.tokens, median or max(32, options.tokens // 12), vocab_size)
    micros = [micro_batch(mix, generator, f"m{index}") for index in range(micro_batches)]
    chance = -np.log(vocab_size)
    sampled = [
        replace(one, logprobs=np.where(one.role == TokenRole.ACTION, chance, 0).astype(np.float32)) for one in micros
    ]
    return rank_batch(sampled, echo=True)


def side(bench: Bench, name: str, *, compiled: bool) -> Step:
    """A side, ready to train."""
    if name == PEER:
        return Peer(bench.model, bench.ranks.device, ADAMW.lr).run
    learner = bench.learner("bfloat16", ADAMW, checkpointing=OURS[name], compiled=compiled)
    return lambda batch: run_timed(bench, learner, batch)["wall"]


def measured(bench: Bench, step: Step, batch: RankBatch, options: argparse.Namespace) -> dict[str, Any]:
    """A side's first step on ``batch``, in which it may compile, and the median of the later ones."""
    first = step(batch)
    step(batch)
    bench.clean()
    if bench.cuda:
        torch.cuda.reset_peak_memory_stats()
    walls = [step(batch) for _ in range(options.repeats)]
    peak = torch.cuda.max_memory_allocated() / GIB if bench.cuda else None
    median = statistics.median(walls)
    return {
        "step_s": median,
        "spread": (max(walls) - min(walls)) / median,
        "first_step_s": first,
        "tokens_per_s": options.tokens * len(batch.micro_batches) / median,
        "peak_gib": peak,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown."""
    lines = ["| side | step s | tokens/s | ÷ peer | share of a product | GiB | first step s |", "|" + "---|" * 7]
    for row in rows:
        relative = "" if row["over_peer"] is None else f"{row['over_peer']:.2f}"
        peak = "" if row["peak_gib"] is None else f"{row['peak_gib']:.1f}"
        values = (f"{row['step_s']:.3f}", f"{row['tokens_per_s']:,.0f}", relative, f"{row['share_of_product']:.1%}")
        lines.append("| " + " | ".join([row["side"], *values, peak, f"{row['first_step_s']:.0f}"]) + " |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    transformers.utils.logging.disable_progress_bar()
    ranks = connect(device=options.device, timeout_s=120)
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(ranks, Path(temporary) / "model", Path(temporary), options.out, limit_s=1e9)
        write_seeded_model(bench.model, SHAPES[options.shape], options.seed)
        config = AutoConfig.from_pretrained(bench.model, local_files_only=True)
        batch = drawn(options, int(config.vocab_size), options.micro_batches)
        flops = sum(model_flops(micro, config) for micro in batch.micro_batches)
        ceiling = matmul_ceiling(bench)
        rows = []
        for name in options.sides:
            step = side(bench, name, compiled=not options.eager)
            rows.append({"side": name, **measured(bench, step, batch, options)})
            del step
            print(f"[{time.monotonic() - bench.began:6.1f} s] {name}", file=sys.stderr, flush=True)
            bench.clean()
    peer = next((row["step_s"] for row in rows if row["side"] == PEER), None)
    for row in rows:
        row["over_peer"] = None if peer is None else peer / row["step_s"]
        row["share_of_product"] = flops / row["step_s"] / ceiling
    (options.out / "step.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    device = torch.cuda.get_device_name() if bench.cuda else "cpu"
    attention = kernel_name(ranks.device, torch.bfloat16)
    print(f"{device}, torch {torch.__version__}, transformers {transformers.__version__}, attention: {attention}")
    print(table(rows))
    disconnect()
    return 0


if __name__ == "__main__":
    end(main(sys.argv[1:]))
