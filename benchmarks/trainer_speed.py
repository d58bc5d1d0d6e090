"""Tokens/s and memory of whole optimizer steps, beside this machine's own matrix-product ceiling."""

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.trainer_bench import ADAMW, Bench, Learner
from benchmarks.trainer_workload import recorded
from echorl_core.wire.batch import MicroBatch, RankBatch, TokenRole
from echorl_trainer.experts import has_experts
from echorl_trainer.model import Checkpointing

GIB = float(1 << 30)
WORKLOADS = ("rl+echo", "rl")
"""Recordings, interleaved in this order."""
RESERVE_S = 20.0
"""Time kept for what comes after a measurement."""


@dataclass(frozen=True)
class Repeats:
    """Steps of each workload."""

    warmups: int
    timed: int


def model_flops(micro: MicroBatch, config: Any) -> float:
    """Floating-point operations that the model asks for in forward and backward; recomputation is not counted.

        layers:    6 * T * L * H * (2 * q + 2 * kv + 3 * I)         q = heads * D, kv = key-value heads * D
                                                            with experts k * 3 * I + E: k taken of E, I of one
        attention: 6 * L * q * sum over documents of n * (n + 1)    causal: half of scores and of values
        head:      6 * K * H * V                                    K scored tokens

    A multiply-add is 2 operations; backward counts twice forward. Norms, rotations and softmax are left out.
    """
    q, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    hidden, layers = config.hidden_size, config.num_hidden_layers
    feed_forward = 3 * config.intermediate_size
    if has_experts(config):
        feed_forward = config.num_experts_per_tok * 3 * config.moe_intermediate_size + config.num_experts
    linear = hidden * (2 * q + 2 * kv + feed_forward)
    lengths = micro.lengths.astype(np.float64)
    scored = int(np.isin(micro.role, (TokenRole.ACTION, TokenRole.ENV_OUTPUT)).sum())
    attention = layers * q * float((lengths * (lengths + 1)).sum())
    head = float(scored) * hidden * config.vocab_size
    return float(6.0 * (len(micro.token_ids) * layers * linear + attention + head))


def matmul_ceiling(bench: Bench) -> float:
    """Operations/s of a square bfloat16 matrix product of random numbers; median of 8 times 10."""
    size = 8192 if bench.cuda else 512
    left, right = (torch.randn(size, size, device=bench.ranks.device, dtype=torch.bfloat16) for _ in range(2))
    seconds = []
    for _ in range(10):
        bench.synchronize()
        begin = time.perf_counter()
        for _ in range(10):
            torch.matmul(left, right)
        bench.synchronize()
        seconds.append((time.perf_counter() - begin) / 10)
    return 2.0 * size**3 / statistics.median(seconds[2:])


def run_timed(bench: Bench, learner: Learner, batch: RankBatch) -> dict[str, float]:
    """One step's seconds, the device's queue drained before and after."""
    bench.synchronize()
    begin = time.perf_counter()
    outcome = learner.runner.run(batch)
    bench.synchronize()
    wall = time.perf_counter() - begin
    return {
        "wall": wall,
        "forward_backward": outcome.seconds["forward_backward"],
        "optimizer": wall - outcome.seconds["forward_backward"],
        "trained": float(outcome.trained_tokens),
        "packed": float(outcome.packed_tokens),
    }


def speed(bench: Bench, checkpointing: Checkpointing, repeats: Repeats, *, compiled: bool = False) -> None:
    """Interleave the workloads; median and spread of each."""
    began = time.perf_counter()
    batches = {name: recorded(bench.recordings / name) for name in WORKLOADS}
    read_s = time.perf_counter() - began
    learner = bench.learner("bfloat16", ADAMW, checkpointing=checkpointing, compiled=compiled)
    config = learner.policy.model.config
    first = [run_timed(bench, learner, batch)["wall"] for batch in batches.values()]
    for _ in range(repeats.warmups - 1):
        for batch in batches.values():
            run_timed(bench, learner, batch)
    ceilings = [matmul_ceiling(bench)]
    bench.clean()
    if bench.cuda:
        torch.cuda.reset_peak_memory_stats()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in WORKLOADS}
    for _ in range(repeats.timed):
        if bench.left_s() < RESERVE_S:
            break
        for name, batch in batches.items():
            found[name].append(run_timed(bench, learner, batch))
    peak = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if bench.cuda else (0, 0)
    ceilings.append(matmul_ceiling(bench))
    ceiling = max(ceilings)
    flops = sum(model_flops(micro, config) for micro in batches["rl+echo"].micro_batches)
    results = {name: _summary(steps, flops, ceiling) for name, steps in found.items() if steps}
    bench.report(
        "speed",
        checkpointing=checkpointing,
        compiled=compiled,
        micro_batches=[len(micro.token_ids) for micro in batches["rl+echo"].micro_batches],
        documents=[len(micro.lengths) for micro in batches["rl+echo"].micro_batches],
        parameters=sum(parameter.numel() for parameter in learner.policy.parameters()),
        first_steps_s=first,
        matmul_tflops=[value / 1e12 for value in ceilings],
        model_tflop_per_step=flops / 1e12,
        peak_allocated_gib=peak[0] / GIB,
        peak_reserved_gib=peak[1] / GIB,
        read_recordings_s=read_s,
        workloads=results,
        echo_over_rl=_ratio(results),
    )


def _summary(steps: list[dict[str, float]], flops: float, ceiling: float) -> dict[str, Any]:
    walls = [step["wall"] for step in steps]
    wall = statistics.median(walls)
    return {
        "steps": len(steps),
        "step_s": wall,
        "spread": (max(walls) - min(walls)) / wall,
        "walls_s": walls,
        "forward_backward_s": statistics.median(step["forward_backward"] for step in steps),
        "optimizer_s": statistics.median(step["optimizer"] for step in steps),
        "packed_tokens_per_s": steps[0]["packed"] / wall,
        "trained_tokens_per_s": steps[0]["trained"] / wall,
        "model_tflops": flops / wall / 1e12,
        "share_of_matmul": flops / wall / ceiling,
    }


def _ratio(results: dict[str, dict[str, Any]]) -> float | None:
    if len(results) < len(WORKLOADS):
        return None
    both, rl = (results[name] for name in WORKLOADS)
    return float(both["step_s"] / rl["step_s"])
