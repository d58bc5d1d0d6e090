"""Sums behind a step's metrics: rows by source on the device, brought over once, merged over ranks.

A row is an environment and a tool of it; every scope (``all``, an environment, a tool) is a sum of rows.

Entropy, ratio, KL and mask shares are over action tokens with an RL weight; ECHO tokens stay out of them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from echorl_core.wire import LogprobGap
from echorl_trainer.batches import ScoredBatch, Source
from echorl_trainer.losses import LossOutput
from echorl_trainer.model import TokenScores

ALL = "all"
NAMED_TOOLS = 16
"""Of an environment, those with the most ECHO tokens: a model may call tools that there are not."""

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
    """Float64 sums [sources, COLUMNS], and the largest of what only means would hide."""

    sources: list[Source]
    sums: Tensor
    echo_max: Tensor
    """Float64 [sources]: largest ``-lp_t`` of an ECHO token; -inf where there is none."""
    gap_max: Tensor
    """Scalar."""
    extra: dict[str, Tensor]
    """Scalar sums over RL tokens of what only some losses measure, by metric."""

    @property
    def taught(self) -> bool:
        """Whether a teacher judged any token; waits for the device."""
        return bool(self.sums[:, COLUMNS.index(_TAUGHT)].sum() > 0)

    @classmethod
    def empty(cls, sources: list[Source], device: torch.device) -> "Tally":
        """Nothing counted."""
        sums = torch.zeros(len(sources), len(COLUMNS), dtype=torch.float64, device=device)
        return cls(sources, sums, torch.full_like(sums[:, 0], -math.inf), torch.zeros_like(sums.sum()), {})

    def cpu(self) -> "Tally":
        """The same on the host, in one transfer."""
        alone = torch.stack([self.gap_max, *self.extra.values()])
        flat = torch.cat([self.sums.flatten(), self.echo_max, alone]).cpu()
        sums, echo_max, (gap_max, *extra) = torch.split(flat, [self.sums.numel(), len(self.sources), len(alone)])
        return Tally(
            self.sources, sums.view_as(self.sums), echo_max, gap_max, dict(zip(self.extra, extra, strict=True))
        )


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
    tally.sums.index_add_(0, scored.source, table.double())
    surprise = torch.where(echo, -logprobs, -math.inf).double()
    tally.echo_max.scatter_reduce_(0, scored.source, surprise, "amax")
    if difference.numel():
        tally.gap_max = torch.maximum(tally.gap_max, difference.max().double())


def merge(tallies: Sequence[Tally]) -> Tally:
    """All ranks' tallies as one, added in the order of ranks."""
    sources = sorted({source for tally in tallies for source in tally.sources})
    merged = Tally.empty(sources, torch.device("cpu"))
    for tally in tallies:
        rows = [sources.index(source) for source in tally.sources]
        merged.sums[rows] += tally.sums
        merged.echo_max[rows] = torch.maximum(merged.echo_max[rows], tally.echo_max)
        merged.gap_max = torch.maximum(merged.gap_max, tally.gap_max)
        for name, value in tally.extra.items():
            merged.extra[name] = merged.extra.get(name, 0.0) + value
    return merged


def summarize(tally: Tally) -> tuple[dict[str, float | None], LogprobGap]:
    """Means by metric and scope, None where no token counted; and the logprob gap.

    Scopes are ``all`` and the environments; of ``echo_nll`` and ``echo_nll_max`` also ``<environment>/<tool>``.
    """
    found: dict[str, float | None] = {}
    environments = sorted({environment for environment, _ in tally.sources if environment})
    for scope in (ALL, *environments):
        rows = [row for row, (environment, _) in enumerate(tally.sources) if scope in {ALL, environment}]
        sums = _sums(tally, rows)
        found[f"env_nll/{scope}"] = _mean(sums["env_nll"], sums[_ENV])
        found |= _echo_nll(tally, scope, rows)
        found[f"entropy/{scope}"] = _mean(sums["entropy"], sums[_RL])
        found[f"mismatch_kl/{scope}"] = _mean(sums["mismatch_kl"], sums[_RL])
        if tally.taught:
            found[f"teacher_kl/{scope}"] = _mean(sums["teacher_kl"], sums[_TAUGHT])
        found[f"is_masked/{scope}"] = _mean(sums["dropped_low"] + sums["dropped_high"], sums[_RL])
    for environment in environments:
        for tool, row in _named_tools(tally, environment):
            found |= _echo_nll(tally, f"{environment}/{tool}", [row])
    total = _sums(tally, range(len(tally.sources)))
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


def _sums(tally: Tally, rows: Iterable[int]) -> dict[str, float]:
    return dict(zip(COLUMNS, tally.sums[list(rows)].sum(dim=0).tolist(), strict=True))


def _echo_nll(tally: Tally, scope: str, rows: list[int]) -> dict[str, float | None]:
    sums = _sums(tally, rows)
    largest = float(tally.echo_max[rows].max()) if sums[_ECHO] else None
    return {f"echo_nll/{scope}": _mean(sums["echo_nll"], sums[_ECHO]), f"echo_nll_max/{scope}": largest}


def _named_tools(tally: Tally, environment: str) -> list[tuple[str, int]]:
    """Tools of an environment that ECHO trained, and their rows; no more than ``NAMED_TOOLS``."""
    counts = tally.sums[:, COLUMNS.index(_ECHO)].tolist()
    found = [
        (tool, row) for row, (one, tool) in enumerate(tally.sources) if one == environment and tool and counts[row]
    ]
    return sorted(sorted(found, key=lambda each: -counts[each[1]])[:NAMED_TOOLS])


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None
