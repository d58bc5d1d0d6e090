"""Sums behind a step's metrics: kept per environment on the device, brought over once, merged over ranks.

Entropy, ratio, KL and mask shares are over action tokens with an RL weight; ECHO tokens stay out of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from echorl_core.wire import LogprobGap
from echorl_trainer.batches import ScoredBatch
from echorl_trainer.losses import LossOutput
from echorl_trainer.model import TokenScores

ALL = "all"

_RL, _TAUGHT, _ENV, _ECHO = "rl_tokens", "taught_tokens", "env_tokens", "echo_tokens"
COLUMNS = (
    _RL, "entropy", "mismatch_kl", "ratio", "dropped_low", "dropped_high",
    _TAUGHT, "teacher_kl",
    _ENV, "env_nll",
    _ECHO, "echo_nll",
    "gap_tokens", "gap_abs", "gap_over",
)  # fmt: skip

_GAP_TOLERANCE = 1e-4


@dataclass
class Tally:
    """Float64 sums [environments, COLUMNS], and the largest logprob gap."""

    environments: list[str]
    sums: Tensor
    gap_max: Tensor
    """Scalar."""
    extra: dict[str, Tensor]
    """Scalar sums over RL tokens of what only some losses measure, by metric."""

    @property
    def taught(self) -> bool:
        """Whether a teacher judged any token; waits for the device."""
        return bool(self.sums[:, COLUMNS.index(_TAUGHT)].sum() > 0)

    @classmethod
    def empty(cls, environments: list[str], device: torch.device) -> "Tally":
        """Zeros."""
        sums = torch.zeros(len(environments), len(COLUMNS), dtype=torch.float64, device=device)
        return cls(environments, sums, torch.zeros((), dtype=torch.float64, device=device), {})

    def cpu(self) -> "Tally":
        """The same on the host, in one transfer."""
        flat = torch.cat([self.sums.flatten(), torch.stack([self.gap_max, *self.extra.values()])]).cpu()
        sums, (gap_max, *extra) = flat[: self.sums.numel()].view_as(self.sums), flat[self.sums.numel() :]
        return Tally(self.environments, sums, gap_max, dict(zip(self.extra, extra, strict=True)))


@torch.no_grad()
def tally_batch(tally: Tally, scored: ScoredBatch, scores: TokenScores, outputs: dict[str, LossOutput]) -> None:
    """Add one micro-batch; waits for nothing."""
    logprobs = scores.logprobs
    nothing = torch.zeros_like(logprobs)
    no_token = torch.zeros_like(scored.is_action)
    rl = scored.is_action & (scored.rl_weight != 0) if "rl" in outputs else no_token
    echo = scored.ce_weight != 0 if "ce" in outputs else no_token
    terms = outputs["rl"].metrics if "rl" in outputs else {}
    difference = torch.where(scored.is_current, (logprobs - scored.sampler_logprobs).abs(), 0.0)
    difference = difference.nan_to_num(nan=math.inf, posinf=math.inf)
    bound = _GAP_TOLERANCE * logprobs.abs().clamp(min=1.0)
    columns = {
        _RL: rl.float(),
        "entropy": torch.where(rl, scores.entropy, 0.0),
        _TAUGHT: rl.float() if "teacher_kl" in terms else nothing,
        _ENV: scored.is_env_output.float(),
        "env_nll": torch.where(scored.is_env_output, -logprobs, 0.0),
        _ECHO: echo.float(),
        "echo_nll": torch.where(echo, -logprobs, 0.0),
        "gap_tokens": scored.is_current.float(),
        "gap_abs": difference,
        "gap_over": (scored.is_current & ~(difference <= bound)).float(),
    }
    of_rl = {name: torch.where(rl, values, 0.0) for name, values in terms.items()}
    for name, values in of_rl.items():
        if name not in COLUMNS:
            tally.extra[name] = tally.extra.get(name, 0.0) + values.sum(dtype=torch.float64)
    columns |= of_rl
    table = torch.stack([columns.get(name, nothing) for name in COLUMNS], dim=1)
    tally.sums.index_add_(0, scored.environment, table.double())
    if difference.numel():
        tally.gap_max = torch.maximum(tally.gap_max, difference.max().double())


def merge(tallies: Sequence[Tally]) -> Tally:
    """All ranks' tallies as one, added in the order of ranks."""
    names = sorted({name for tally in tallies for name in tally.environments})
    merged = Tally.empty(names, torch.device("cpu"))
    for tally in tallies:
        merged.sums[[names.index(name) for name in tally.environments]] += tally.sums
        merged.gap_max = torch.maximum(merged.gap_max, tally.gap_max)
        for name, value in tally.extra.items():
            merged.extra[name] = merged.extra.get(name, 0.0) + value
    return merged


def summarize(tally: Tally) -> tuple[dict[str, float | None], LogprobGap]:
    """Means by metric and environment, None where no token counted; and the logprob gap."""
    rows = {ALL: tally.sums.sum(dim=0), **dict(zip(tally.environments, tally.sums, strict=True))}
    found: dict[str, float | None] = {}
    for name, row in rows.items():
        sums = dict(zip(COLUMNS, row.tolist(), strict=True))
        found[f"env_nll/{name}"] = _mean(sums["env_nll"], sums[_ENV])
        found[f"echo_nll/{name}"] = _mean(sums["echo_nll"], sums[_ECHO])
        found[f"entropy/{name}"] = _mean(sums["entropy"], sums[_RL])
        found[f"mismatch_kl/{name}"] = _mean(sums["mismatch_kl"], sums[_RL])
        if tally.taught:
            found[f"teacher_kl/{name}"] = _mean(sums["teacher_kl"], sums[_TAUGHT])
        found[f"is_masked/{name}"] = _mean(sums["dropped_low"] + sums["dropped_high"], sums[_RL])
    total = dict(zip(COLUMNS, rows[ALL].tolist(), strict=True))
    found["ratio/mean"] = _mean(total["ratio"], total[_RL])
    found["is_masked_low"] = _mean(total["dropped_low"], total[_RL])
    found["is_masked_high"] = _mean(total["dropped_high"], total[_RL])
    found["echo_tokens"] = total[_ECHO]
    found |= {name: _mean(float(value), total[_RL]) for name, value in tally.extra.items()}
    compared = int(total["gap_tokens"])
    gap = LogprobGap(
        tokens=compared,
        max_abs=float(tally.gap_max) if compared else None,
        mean_abs=_mean(total["gap_abs"], compared),
        over_tolerance=int(total["gap_over"]),
    )
    return found, gap


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None
