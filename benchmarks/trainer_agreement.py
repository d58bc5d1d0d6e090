"""Whether the step in bfloat16 (varlen kernel) agrees with its float32 self (per-document sdpa, no TF32).

Beside that error stand three that have nothing to do with how the step computes: the same documents packed otherwise,
in both precisions, and float32 with weights rounded to bfloat16 once.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

from benchmarks.trainer_bench import FROZEN, Bench, Learner
from benchmarks.trainer_workload import policy_logprobs, recorded
from echorl_core.wire.batch import RankBatch

UNIT_ROUNDOFF = 2.0**-9
"""Largest relative error of rounding to bfloat16."""
ROUNDINGS_PER_LAYER = 12
"""Tensors that a layer rounds one after the other between its input and its output."""
LOSS_BOUND = 1e-2

Gradient = dict[str, Tensor]


@dataclass(frozen=True)
class Outcome:
    """What one step saw, with weights left alone."""

    losses: dict[str, float]
    gradient: Gradient
    norm: float


def random_walk_bound(layers: int) -> float:
    """Relative error of a gradient whose every rounding, forward and back, adds its own: u * sqrt(2 * 12 * layers)."""
    return UNIT_ROUNDOFF * float(np.sqrt(2 * ROUNDINGS_PER_LAYER * layers))


def run_step(learner: Learner, batch: RankBatch) -> Outcome:
    """One step of ``FROZEN``: losses and the gradient that the optimizer was given."""
    seen: Gradient = {}

    def keep(*_: object) -> None:
        for name, parameter in learner.policy.named_parameters():
            if isinstance(gradient := parameter.grad, DTensor):
                seen[name] = gradient.to_local().detach().clone()

    handle = learner.optimizer.register_step_pre_hook(keep)
    outcome = learner.runner.run(batch)
    handle.remove()
    losses = {name: float(outcome.metrics[f"loss/{name}"] or 0.0) for name in ("rl", "ce")}
    return Outcome(losses, seen, float(outcome.metrics["optim/grad_norm"] or 0.0))


def norm(tensor: Tensor) -> float:
    """Euclidean norm, summed in float64."""
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def compare(found: Outcome, reference: Outcome, rl_scale: float) -> dict[str, Any]:
    """Norm of the difference over norm, of all parameters together, by kind and one by one."""
    apart = {name: norm(found.gradient[name] - tensor) for name, tensor in reference.gradient.items()}
    whole = {name: norm(tensor) for name, tensor in reference.gradient.items()}
    each = {name: apart[name] / whole[name] for name in apart if whole[name] > 0}
    worst = sorted(each, key=each.__getitem__, reverse=True)[:3]
    kinds = sorted({_kind(name) for name in each})
    return {
        "gradient": _root(apart.values()) / _root(whole.values()),
        "gradient_median": float(np.median(list(each.values()))),
        "gradient_worst": {name: each[name] for name in worst},
        "gradient_by_kind": {
            kind: _root(apart[n] for n in each if _kind(n) == kind) / _root(whole[n] for n in each if _kind(n) == kind)
            for kind in kinds
        },
        "gradient_norm": abs(found.norm - reference.norm) / reference.norm,
        "loss_ce": abs(found.losses["ce"] - reference.losses["ce"]) / abs(reference.losses["ce"]),
        # Advantages of both signs cancel in the sum, so its size says nothing about its terms.
        "loss_rl_over_mean_advantage": abs(found.losses["rl"] - reference.losses["rl"]) / rl_scale,
    }


def _kind(name: str) -> str:
    parts = name.removesuffix(".weight").replace("model.", "").split(".")
    return ".".join(part for part in parts if part != "layers" and not part.isdigit())


def _root(values: Any) -> float:
    return float(np.sqrt(sum(value * value for value in values)))


@torch.no_grad()
def round_weights(learner: Learner) -> None:
    """To bfloat16 and back."""
    for parameter in learner.policy.parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        local.copy_(local.bfloat16())


def agreement(bench: Bench) -> None:
    """Run both precisions on the same recording, one pack and two, and report."""
    torch.set_float32_matmul_precision("highest")
    one, two = (recorded(bench.recordings / name) for name in ("agreement", "agreement-repacked"))
    micro = one.micro_batches[0]
    exact, exact_two, rounded, logprobs = _float32(bench, one, two)
    bench.clean()
    learner = bench.learner("bfloat16", FROZEN)
    half, half_two = run_step(learner, one), run_step(learner, two)
    difference = np.abs(policy_logprobs(micro, learner.policy, bench.ranks) - logprobs)[logprobs != 0]
    scale = float(np.abs(micro.advantage[micro.rl_weight != 0]).mean())
    pairs = {
        "bf16 / f32": (half, exact),
        "bf16 / f32 of rounded weights": (half, rounded),
        "f32 of rounded weights / f32": (rounded, exact),
        "bf16 repacked / bf16": (half_two, half),
        "f32 repacked / f32": (exact_two, exact),
    }
    errors = {name: compare(found, reference, scale) for name, (found, reference) in pairs.items()}
    bound = random_walk_bound(len(learner.policy.layers))
    main = errors["bf16 / f32"]
    bench.report(
        "agreement",
        tokens=len(micro.token_ids),
        documents=micro.lengths.tolist(),
        losses_f32=exact.losses,
        losses_bf16=half.losses,
        grad_norm_f32=exact.norm,
        grad_norm_bf16=half.norm,
        errors=errors,
        logprob_max_abs=float(difference.max()),
        logprob_mean_abs=float(difference.mean()),
        logprob_mean=float(logprobs[logprobs != 0].mean()),
        gradient_bound=bound,
        loss_bound=LOSS_BOUND,
        agrees=bool(
            main["gradient"] <= bound
            and main["loss_ce"] <= LOSS_BOUND
            and main["loss_rl_over_mean_advantage"] <= LOSS_BOUND
        ),
    )


def _float32(bench: Bench, one: RankBatch, two: RankBatch) -> tuple[Outcome, Outcome, Outcome, NDArray[np.float32]]:
    learner = bench.learner("float32", FROZEN)
    exact, repacked = run_step(learner, one), run_step(learner, two)
    logprobs = policy_logprobs(one.micro_batches[0], learner.policy, bench.ranks)
    round_weights(learner)
    return exact, repacked, run_step(learner, one), logprobs
