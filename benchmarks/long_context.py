"""Optimizer steps at growing lengths, by ranks with packs of their own and by ranks that share them.

    PYTHONPATH=core:operator:orchestrator:trainer python3 -m benchmarks.long_context --out DIR --ranks 2

A step trains as many packs as there are ranks, each of one document: a pack a rank, or one after the other by all ranks
together (``spec.trainer.parallel.context``), or by groups of them. Seeded weights, AdamW. Each case has processes of
its own, one a GPU; one whose ranks run out of memory is said not to fit. ``DIR/long_context.jsonl`` gets a line a case,
a table is printed last. ``--device cpu --shape tiny`` tries the program; its times say nothing of GPUs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.trainer_workload import Mix, micro_batch
from echorl_cli.local.ports import free_ports
from echorl_core.config import LossConfig, ModelConfig, OptimizerConfig
from echorl_core.wire.batch import RankBatch
from echorl_trainer.ending import end
from echorl_trainer.loading import start_policy
from echorl_trainer.losses import policy_loss
from echorl_trainer.model import Checkpointing
from echorl_trainer.optimizer import build_optimizer, build_schedule
from echorl_trainer.parallel import Ranks, connect, disconnect
from echorl_trainer.seeded import SHAPES, write_seeded_model
from echorl_trainer.step import StepRunner

GIB = float(1 << 30)
OUT_OF_MEMORY = 3
"""Exit code of a rank."""
_POLL_S = 0.05


@dataclass(frozen=True)
class Case:
    """How packs of one length are trained."""

    tokens: int
    """Of a pack, all of one document."""
    context: int
    """Ranks that share a pack."""
    ranks: int
    checkpointing: Checkpointing
    repeats: int
    """Timed steps, after two more."""


def measured(case: Case, model: Path, device: Literal["cpu", "cuda"]) -> dict[str, Any]:
    """Be one of the case's ranks, which torchrun's variables name: the median step and this rank's largest peak."""
    ranks = connect(device=device, timeout_s=600.0, context=case.context)
    cuda = device == "cuda"
    try:
        dtype: Literal["bfloat16", "float32"] = "bfloat16" if cuda else "float32"
        config = ModelConfig(path=str(model), dtype=dtype, max_model_len=case.tokens, renderer="engine")
        policy = start_policy(config, ranks, seed=0, compile=cuda, activation_checkpointing=case.checkpointing)
        adamw = OptimizerConfig(lr=1e-6)
        optimizer = build_optimizer(policy, adamw)
        schedule = build_schedule(optimizer, adamw, 1000)
        runner = StepRunner(policy, optimizer, schedule, policy_loss(LossConfig()), ranks, 1.0)
        vocab_size = int(policy.model.get_input_embeddings().num_embeddings)
        seconds = []
        for step in range(1, case.repeats + 3):
            batch = batch_of(case, step, vocab_size, ranks)
            if cuda and step == 3:
                torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            runner.run(batch)
            seconds.append(time.perf_counter() - began)
        peak = torch.cuda.max_memory_allocated() / GIB if cuda else None
    finally:
        disconnect()
    step_s = statistics.median(seconds[2:])
    return {"step_s": step_s, "tokens_per_s": case.ranks * case.tokens / step_s, "peak_gib": peak}


def batch_of(case: Case, step: int, vocab_size: int, ranks: Ranks) -> RankBatch:
    """This rank's share of a step's packs; the same packs however they are shared."""
    mix = Mix(case.tokens, case.tokens, vocab_size, sigma=0.0)
    packs = [
        micro_batch(mix, np.random.default_rng([step, number]), f"s{step}p{number}") for number in range(case.ranks)
    ]
    return RankBatch(
        run_uid="long-context",
        attempt=1,
        step=step,
        rank=ranks.data_rank,
        num_ranks=ranks.num_data_ranks,
        denominators={
            "rl": float(sum((pack.rl_weight != 0).sum() for pack in packs)),
            "ce": float(sum((pack.ce_weight != 0).sum() for pack in packs)),
        },
        checkpoint=False,
        last=False,
        micro_batches=packs[ranks.data_rank :: ranks.num_data_ranks],
    )


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown."""
    lines = ["| tokens | ranks a pack | step s | tokens/s | GiB a rank |", "|" + "---|" * 5]
    for row in rows:
        values = ("does not fit", "", "")
        if "step_s" in row:
            peak = "" if row["peak_gib"] is None else f"{row['peak_gib']:.1f}"
            values = (f"{row['step_s']:.3f}", f"{row['tokens_per_s']:,.0f}", peak)
        lines.append("| " + " | ".join([f"{row['tokens']:,}", str(row["context"]), *values]) + " |")
    return "\n".join(lines)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="0.6b")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--context", type=int, nargs="+", help="ranks that share a pack; default: 1, and all of them")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16_384, 32_768, 65_536, 131_072], help="of a pack")
    parser.add_argument("--checkpointing", choices=["none", "selective", "full"], default="selective")
    parser.add_argument("--repeats", type=int, default=4, help="timed steps")
    parser.add_argument("--as-rank", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    model = options.out / "model"
    if options.as_rank is not None:
        case = Case(options.tokens[0], options.context[0], options.ranks, options.checkpointing, options.repeats)
        try:
            found = measured(case, model, options.device)
        except torch.OutOfMemoryError as error:
            print(error, file=sys.stderr)
            return OUT_OF_MEMORY
        if os.environ["RANK"] == "0":
            options.as_rank.write_text(json.dumps(found))
        return 0
    write_seeded_model(model, SHAPES[options.shape], 0, tie=True)
    rows = []
    for tokens in options.tokens:
        for context in options.context or [1, options.ranks]:
            case = Case(tokens, context, options.ranks, options.checkpointing, options.repeats)
            rows.append(asdict(case) | _run(case, options))
            print(rows[-1], file=sys.stderr, flush=True)
    (options.out / "long_context.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(table(rows))
    return 0


def run_gang(module: str, arguments: list[str], ranks: int) -> list[int | None]:
    """Run a module's ranks in processes of their own, with torchrun's variables; how each ended, None: it was ended.

    One that ran out of memory leaves the others waiting for it, so all are ended when one fails.
    """
    [port] = free_ports(1)
    shared = os.environ | {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments], env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(ranks)
    ]
    try:
        while any(process.poll() is None for process in processes) and not any(one.returncode for one in processes):
            time.sleep(_POLL_S)
        return [process.poll() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _run(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """The case's ranks in processes of their own; nothing where one of them ran out of memory."""
    result = options.out / "result.json"
    result.unlink(missing_ok=True)
    settings = {
        "out": options.out, "shape": options.shape, "device": options.device, "ranks": case.ranks,
        "context": case.context, "tokens": case.tokens, "checkpointing": case.checkpointing, "repeats": case.repeats,
        "as-rank": result,
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    codes = run_gang("benchmarks.long_context", words, case.ranks)
    if OUT_OF_MEMORY in codes:
        return {}
    if any(codes):
        raise SystemExit(f"{case}: ranks ended with codes {codes}")
    found: dict[str, Any] = json.loads(result.read_text())
    return found


if __name__ == "__main__":
    end(main(sys.argv[1:]))
