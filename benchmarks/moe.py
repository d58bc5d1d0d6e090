"""Optimizer steps of a mixture of experts beside a dense model of the same width and as many active parameters.

    PYTHONPATH=core:operator:orchestrator:trainer python3 -m benchmarks.moe --out DIR

Both have a vocabulary of bytes, so that layers are what counts, and train the same documents, ours and transformers' by
turns in one process. What is compared is each side's share of the rate of one large matrix product, of the operations
of its active parameters, by how many micro-batches a step has: what a mixture does once a step, with all of its
parameters, weighs less in a longer one. ``DIR/moe.jsonl`` gets a line for each; a table is printed last.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

import torch
import transformers
from transformers import AutoConfig

from benchmarks.step.__main__ import OURS, PEER, drawn, measured, side
from benchmarks.trainer_bench import Bench
from benchmarks.trainer_speed import matmul_ceiling, model_flops
from echorl_trainer.ending import end
from echorl_trainer.parallel import Accumulation, connect, disconnect
from echorl_trainer.seeded import SHAPES, Family, write_seeded_model

DENSE: Family = "qwen3"
MIXTURE: Family = "qwen3_moe"


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="30b-a3b-bytes")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--tokens", type=int, default=32_768, help="of a micro-batch")
    parser.add_argument("--median", type=int, help="tokens of a document; default: a twelfth of a micro-batch")
    parser.add_argument("--micro-batches", nargs="+", type=int, default=[2], help="of a step")
    parser.add_argument("--sides", nargs="+", choices=[PEER, *OURS], default=["ours", PEER])
    parser.add_argument("--eager", action="store_true", help="our layers are not compiled")
    parser.add_argument("--accumulation", choices=get_args(Accumulation), default="sharded", help="of our gradients")
    parser.add_argument("--repeats", type=int, default=4, help="timed steps of each side")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def rows_of(family: Family, bench: Bench, ceiling: float, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One model, all sides, all steps."""
    write_seeded_model(bench.model, SHAPES[options.shape], options.seed, family=family)
    config = AutoConfig.from_pretrained(bench.model, local_files_only=True)
    rows = []
    for name in options.sides:
        step = side(bench, name, compiled=not options.eager)
        for count in options.micro_batches:
            batch = drawn(options, int(config.vocab_size), count, options.median)
            row = measured(bench, step, batch, options)
            flops = sum(model_flops(micro, config) for micro in batch.micro_batches)
            share = flops / row["step_s"] / ceiling
            rows.append({"family": family, "side": name, "micro_batches": count, **row, "share_of_product": share})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        del step
        bench.clean()
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown."""
    lines = [
        "| model | side | micro-batches | step s | tokens/s | share of a product | ÷ dense | GiB |",
        "|" + "---|" * 8,
    ]
    for row in rows:
        peak = "" if row["peak_gib"] is None else f"{row['peak_gib']:.1f}"
        what = (row["family"], row["side"], str(row["micro_batches"]))
        values = (f"{row['step_s']:.3f}", f"{row['tokens_per_s']:,.0f}", f"{row['share_of_product']:.1%}")
        lines.append("| " + " | ".join([*what, *values, f"{row['over_dense']:.2f}", peak]) + " |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    transformers.utils.logging.disable_progress_bar()
    ranks = connect(device=options.device, timeout_s=120)
    rows: list[dict[str, Any]] = []
    for family in (DENSE, MIXTURE):
        with tempfile.TemporaryDirectory() as temporary:
            model, accumulation = Path(temporary) / "model", options.accumulation
            bench = Bench(ranks, model, Path(temporary), options.out, limit_s=1e9, accumulation=accumulation)
            if not rows:
                ceiling = matmul_ceiling(bench)
            rows += rows_of(family, bench, ceiling, options)
    dense = {(row["side"], row["micro_batches"]): row["share_of_product"] for row in rows if row["family"] == DENSE}
    for row in rows:
        row["over_dense"] = row["share_of_product"] / dense[row["side"], row["micro_batches"]]
    (options.out / "moe.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    print(f"{device}, torch {torch.__version__}, transformers {transformers.__version__}, {options.shape}")
    print(table(rows))
    disconnect()
    return 0


if __name__ == "__main__":
    end(main(sys.argv[1:]))
