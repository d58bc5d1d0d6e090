"""Peaks of a rank's GPU memory in real steps beside what ``echorl plan`` counts; and what ways to keep moments cost.

    PYTHONPATH=core:operator:orchestrator:trainer python3 -m benchmarks.memory --out DIR

Seeded weights; a step of two micro-batches a rank, three times. Each case has processes of its own, one a GPU.
``--device cpu`` tries the program at a tiny size, without peaks.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.trainer_workload import RUN_UID, Mix, micro_batch
from echorl_cli.local.ports import free_ports
from echorl_cli.plan.model_shape import GIB, RESERVED_BYTES, ModelShape
from echorl_cli.plan.trainer_memory import Training, trainer_memory
from echorl_core.config import LossConfig, ModelConfig, OptimizerConfig
from echorl_core.wire.batch import RankBatch
from echorl_trainer.ending import end
from echorl_trainer.loading import start_policy
from echorl_trainer.losses import policy_loss
from echorl_trainer.optimizer import build_optimizer, build_schedule
from echorl_trainer.parallel import Ranks, connect, disconnect
from echorl_trainer.seeded import SHAPES, SeededShape, write_seeded_model
from echorl_trainer.step import StepRunner

LARGE = SeededShape(
    hidden_size=2048,
    intermediate_size=6144,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    max_position_embeddings=40_960,
    rope_theta=1_000_000.0,
    vocab_size=151_936,
)
"""Qwen3-1.7B's."""
_SHAPES = {"0.6b": SHAPES["0.6b"], "1.7b": LARGE, "tiny": SHAPES["tiny"]}


@dataclass(frozen=True)
class Case:
    """One process."""

    shape: str = "0.6b"
    tokens: int = 16_384
    checkpointing: str = "selective"
    compile: bool = True
    accumulation: str = "sharded"
    state_dtype: str = "float32"
    cpu_offload: bool = False
    ranks: int = 1


CASES = (
    Case(),
    Case(checkpointing="full"),
    Case(checkpointing="none"),
    Case(checkpointing="selective", compile=False),
    Case(checkpointing="none", compile=False),
    Case(tokens=8192),
    Case(accumulation="unsharded"),
    Case(state_dtype="bfloat16"),
    Case(state_dtype="int8"),
    Case(cpu_offload=True),
    Case(state_dtype="int8", cpu_offload=True),
    Case(shape="1.7b"),
    Case(shape="1.7b", checkpointing="full", state_dtype="int8"),
    Case(shape="1.7b", ranks=2),
    Case(shape="1.7b", ranks=2, accumulation="unsharded"),
)


def planned(case: Case, shape: SeededShape) -> int:
    """What the plan counts for a GPU of the case, without what CUDA takes."""
    dimensions = ModelShape(
        vocab_size=shape.vocab_size or 265,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=True,
    )
    use = Training(case.ranks, case.tokens)
    settings: dict[str, Any] = {
        "activation_checkpointing": case.checkpointing,
        "gradient_accumulation": case.accumulation,
        "state_dtype": case.state_dtype,
        "cpu_offload": case.cpu_offload,
    }
    return trainer_memory(dimensions, replace(use, **settings)).total - RESERVED_BYTES


def measure(case: Case, model: Path, device: str) -> dict[str, Any]:
    """Train three steps; the largest peak, and the last step's parts."""
    shape = _SHAPES[case.shape]
    ranks = connect(device=device, timeout_s=300.0)  # type: ignore[arg-type]
    try:
        dtype = "bfloat16" if device == "cuda" else "float32"
        config = ModelConfig(path=str(model), dtype=dtype, max_model_len=case.tokens, renderer="engine")  # type: ignore[arg-type]
        began = time.perf_counter()
        policy = start_policy(
            config,
            ranks,
            seed=0,
            compile=case.compile,
            activation_checkpointing=case.checkpointing,  # type: ignore[arg-type]
        )
        loaded_s = time.perf_counter() - began
        settings = {"lr": 1e-5, "state_dtype": case.state_dtype, "cpu_offload": case.cpu_offload}
        chosen = OptimizerConfig.model_validate(settings)
        optimizer = build_optimizer(policy, chosen)
        runner = StepRunner(
            policy,
            optimizer,
            build_schedule(optimizer, chosen, 100),
            policy_loss(LossConfig()),
            ranks,
            1.0,
            case.accumulation,  # type: ignore[arg-type]
        )
        mix = Mix(case.tokens, min(2860, case.tokens // 4), shape.vocab_size or 265)
        peaks, seconds = [], {}
        for step in (1, 2, 3):
            generator = np.random.default_rng(step)
            micros = [micro_batch(mix, generator, f"s{step}r{ranks.rank}m{number}") for number in range(2)]
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            seconds = runner.run(_batch(step, micros, ranks)).seconds
            if device == "cuda":
                peaks.append(torch.cuda.max_memory_allocated())
        reserved = torch.cuda.max_memory_reserved() if device == "cuda" else 0
    finally:
        disconnect()
    return {"loaded_s": loaded_s, "peak": max(peaks, default=0), "reserved": reserved, **seconds}


def _batch(step: int, micros: list[Any], ranks: Ranks) -> RankBatch:
    actions = float(sum((micro.rl_weight != 0).sum() for micro in micros))
    outputs = float(sum((micro.ce_weight != 0).sum() for micro in micros))
    return RankBatch(
        run_uid=RUN_UID,
        attempt=1,
        step=step,
        rank=ranks.rank,
        num_ranks=ranks.world_size,
        denominators={"rl": actions, "ce": outputs},
        checkpoint=False,
        last=False,
        micro_batches=micros,
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--cases", type=int, nargs="*", help="numbers of cases; default: all")
    parser.add_argument("--as-rank", action="store_true", help="be a rank of the one case, in this process")
    parser.add_argument("--models", type=Path, default=Path("/tmp/echorl-memory"), help="where models are written")  # noqa: S108
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    cases = [one if chosen.device == "cuda" else _tiny(one) for one in CASES]
    for number in range(len(cases)) if chosen.cases is None else chosen.cases:
        case = cases[number]
        model = chosen.models / case.shape
        if chosen.as_rank:
            _report(case, measure(case, model, chosen.device), chosen.out)
            return
        if not model.exists():
            write_seeded_model(model, _SHAPES[case.shape], 0, tie=True, dtype="bfloat16")
        arguments = ("--out", chosen.out, "--device", chosen.device, "--models", chosen.models)
        codes = _run(case, [*map(str, arguments), "--cases", str(number), "--as-rank"])
        if any(codes):
            print(f"ended with codes {codes}: {case}", flush=True)


def _tiny(case: Case) -> Case:
    return replace(case, shape="tiny", tokens=256, compile=False)


def _run(case: Case, arguments: list[str]) -> list[int]:
    """The case's ranks, to their end; their exit codes."""
    [port] = free_ports(1)
    variables = {"WORLD_SIZE": str(case.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "benchmarks.memory", *arguments]
    processes = [
        subprocess.Popen(command, env=os.environ | variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(case.ranks)
    ]
    return [process.wait() for process in processes]


def _report(case: Case, measured: dict[str, Any], out: Path) -> None:
    if os.environ["RANK"] != "0":
        return
    found = {**asdict(case), **measured, "planned": planned(case, _SHAPES[case.shape])}
    with (out / "memory.jsonl").open("a") as file:
        file.write(json.dumps(found) + "\n")
    share = found["planned"] / found["peak"] if found["peak"] else float("nan")
    seconds = f"optimizer {found['optimizer']:.2f} s, loaded in {found['loaded_s']:.1f} s"
    print(f"{case}: peak {found['peak'] / GIB:.2f} GiB, planned {share:.2f} of it, {seconds}", flush=True)


if __name__ == "__main__":
    main()
    end(0)
