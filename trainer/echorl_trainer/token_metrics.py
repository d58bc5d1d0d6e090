"""Sums behind a step's metrics: rows by source on the device, brought over once, merged over ranks.

A row is an environment and a tool of it; every scope (``all``, an environment, a tool) is a sum of rows.

Entropy, ratio, KL, mask shares and custom metrics are over action tokens with an RL weight; ECHO tokens stay out of
them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from echorl_core.wire.reports import LogprobGap
from echorl_trainer.batches import ScoredBatch, Source
from echorl_trainer.losses import LossOutput
from echorl_trainer.model import TokenScores
from echorl_trainer.moments import Moments
from echorl_trainer.routers import SUMS

ALL = "all"
NAMED_TOOLS = 16
"""The most tools of an environment that are named: those with the most ECHO tokens, as a model may invent tools."""

_RL, _TAUGHT, _ENV, _ECHO = "rl_tokens", "taught_tokens", "env_tokens", "echo_tokens"
COLUMNS = (
    _RL, "dropped_low", "dropped_high",
    _TAUGHT, _ENV, _ECHO,
    "gap_tokens", "gap_abs", "gap_over",
)  # fmt: skip
_GAP = slice(COLUMNS.index("gap_tokens"), COLUMNS.index("gap_over") + 1)

_TOKENS = {
    "env_nll": _ENV,
    "echo_nll": _ECHO,
    "entropy": _RL,
    "mismatch_kl": _RL,
    "ratio": _RL,
    "teacher_kl": _TAUGHT,
}
"""Metrics with mean, deviation and bounds, and the column that counts their tokens."""
_MEASURES = tuple(_TOKENS)
_MASKED = {
    "is_masked": ("dropped_low", "dropped_high"),
    "is_masked_low": ("dropped_low",),
    "is_masked_high": ("dropped_high",),
}
"""Shares of RL tokens, and the columns that count them."""
_CUSTOM = "custom/"

GAP_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""By the precision that both compute in; of a logprob below -1 the share of it."""


@dataclass
class TokenMetrics:
    """Counts over the tokens of a step, by source: float64 sums [sources, COLUMNS], and moments and maxima."""

    sources: list[Source]
    sums: Tensor
    moments: Moments
    """Moments of ``_MEASURES``."""
    gap_max: Tensor
    """Largest absolute gap between engine and trainer logprobs; a scalar."""
    extra: dict[str, Moments]
    """Moments over RL tokens of what only some losses measure, one measure each, by metric."""
    routing: Tensor | None = None
    """Sums of ``Router.load``, float64 [layers, E + 4]; None: there are no experts."""

    @property
    def taught(self) -> bool:
        """Whether a teacher judged any token; waits for the device."""
        return bool(self.sums[:, COLUMNS.index(_TAUGHT)].sum() > 0)

    @classmethod
    def empty(cls, sources: list[Source], device: torch.device) -> "TokenMetrics":
        """Make metrics in which nothing is counted."""
        sums = torch.zeros(len(sources), len(COLUMNS), dtype=torch.float64, device=device)
        return cls(sources, sums, Moments.empty(len(sources), len(_MEASURES), device), torch.zeros_like(sums.sum()), {})

    def cpu(self) -> "TokenMetrics":
        """Bring the metrics to the host, in one transfer."""
        all_moments = [self.moments, *self.extra.values()]
        routing = [] if self.routing is None else [self.routing]
        parts = [*routing, self.sums, self.gap_max, *(part for one in all_moments for part in (one.sums, one.bounds))]
        flat = torch.cat([part.flatten() for part in parts]).cpu()
        found = [
            values.view_as(part)
            for values, part in zip(torch.split(flat, [part.numel() for part in parts]), parts, strict=True)
        ]
        counted = found.pop(0) if routing else None
        moments, *extra = map(Moments, found[2::2], found[3::2])
        by_name = dict(zip(self.extra, extra, strict=True))
        return TokenMetrics(self.sources, found[0], moments, found[1], by_name, counted)

    def add_routing(self, load: Tensor) -> None:
        """Count what the routers of all layers chose of a micro-batch's tokens, float64 [layers, E + 4]."""
        self.routing = load if self.routing is None else self.routing + load


@torch.no_grad()
def count_batch(
    metrics: TokenMetrics,
    scored: ScoredBatch,
    scores: TokenScores,
    outputs: dict[str, LossOutput],
    *,
    gap_tolerance: float = GAP_TOLERANCE[torch.float32],
) -> None:
    """Count the tokens of one micro-batch; waits for nothing."""
    logprobs = scores.logprobs
    nothing = torch.zeros_like(logprobs, dtype=torch.float64)
    no_token = torch.zeros_like(scored.is_action)
    rl = scored.is_action & (scored.rl_weight != 0) if "rl" in outputs else no_token
    echo = scored.ce_weight != 0 if "ce" in outputs else no_token
    terms = outputs["rl"].metrics if "rl" in outputs else {}
    taught = rl if "teacher_kl" in terms else no_token
    counted: dict[str, Tensor] = {_RL: rl, _TAUGHT: taught, _ENV: scored.is_env_output, _ECHO: echo}
    columns: dict[str, Tensor] = {
        **counted,
        **{name: torch.where(rl, terms[name], 0.0) for name in ("dropped_low", "dropped_high") if name in terms},
    }
    table = torch.stack([columns[name].double() if name in columns else nothing for name in COLUMNS], dim=1)
    metrics.sums.index_add_(0, scored.source, table)
    count_gap(metrics, scored, logprobs, gap_tolerance)
    values = {"entropy": scores.entropy, "env_nll": -logprobs, "echo_nll": -logprobs, **terms}
    metrics.moments.add(
        scored.source,
        torch.stack([values.get(name, nothing) for name in _MEASURES], dim=1),
        torch.stack([counted[_TOKENS[name]] for name in _MEASURES], dim=1),
    )
    for name in [name for name in terms if name not in {*COLUMNS, *_MEASURES}]:
        if name not in metrics.extra:
            metrics.extra[name] = Moments.empty(len(metrics.sources), 1, metrics.sums.device)
        metrics.extra[name].add(scored.source, terms[name][:, None], rl[:, None])


@torch.no_grad()
def count_gap(metrics: TokenMetrics, scored: ScoredBatch, logprobs: Tensor, tolerance: float) -> None:
    """Compare ``logprobs`` [K] of the current tokens with the engine's; waits for nothing."""
    difference = torch.where(scored.is_current, (logprobs - scored.sampler_logprobs).abs(), 0.0)
    difference = difference.nan_to_num(nan=math.inf, posinf=math.inf)
    over = scored.is_current & ~(difference <= tolerance * logprobs.abs().clamp(min=1.0))
    table = torch.stack([scored.is_current.double(), difference.double(), over.double()], dim=1)
    columns = metrics.sums[:, _GAP]  # a view: a list of indices would have to be sent to the device, and waited for
    columns += torch.zeros_like(columns).index_add_(0, scored.source, table)
    if difference.numel():
        metrics.gap_max = torch.maximum(metrics.gap_max, difference.max().double())


def merge(parts: Sequence[TokenMetrics]) -> TokenMetrics:
    """Add all ranks' parts, in the order of ranks."""
    sources = sorted({source for metrics in parts for source in metrics.sources})
    merged = TokenMetrics.empty(sources, torch.device("cpu"))
    for metrics in parts:
        rows = [sources.index(source) for source in metrics.sources]
        merged.sums[rows] += metrics.sums
        merged.moments.merge(rows, metrics.moments)
        merged.gap_max = torch.maximum(merged.gap_max, metrics.gap_max)
        for name, moments in metrics.extra.items():
            if name not in merged.extra:
                merged.extra[name] = Moments.empty(len(sources), 1, merged.sums.device)
            merged.extra[name].merge(rows, moments)
        if metrics.routing is not None:
            merged.add_routing(metrics.routing)
    return merged


def summarize(metrics: TokenMetrics) -> tuple[dict[str, float | None], LogprobGap]:
    """Mean, deviation and bounds by metric and scope, None where no token counted; and the logprob gap.

    Scopes are ``all`` and the environments; of ``echo_nll`` and ``echo_nll_max`` also ``<environment>/<tool>``.
    """
    found: dict[str, float | None] = {}
    environments = sorted({environment for environment, _ in metrics.sources if environment})
    for scope in (ALL, *environments):
        rows = [row for row, (environment, _) in enumerate(metrics.sources) if scope in {ALL, environment}]
        found |= _of_scope(metrics, scope, rows)
    for environment in environments:
        for tool, row in _named_tools(metrics, environment):
            told = _statistics(metrics, "echo_nll", f"{environment}/{tool}", [row])
            found |= {name: value for name, value in told.items() if name.startswith(("echo_nll/", "echo_nll_max/"))}
    # Last: the step's own names stand, whatever an environment is called.
    found |= {"ratio/mean": found[f"ratio/{ALL}"]}
    found |= {name: found[f"{name}/{ALL}"] for name in ("is_masked_low", "is_masked_high", *metrics.extra)}
    if metrics.routing is not None:
        found |= _routing(metrics.routing)
    total = _sums(metrics, range(len(metrics.sources)))
    found["echo_tokens"] = total[_ECHO]
    compared = int(total["gap_tokens"])
    gap = LogprobGap(
        tokens=compared,
        max_abs=float(metrics.gap_max) if compared else None,
        mean_abs=_mean(total["gap_abs"], compared),
        over_tolerance=int(total["gap_over"]),
    )
    return found, gap


def _routing(load: Tensor) -> dict[str, float | None]:
    """How evenly tokens went to experts; a load of 1 is that of equal shares."""
    counts, (entropy, tokens, given, differing) = load[:, : -len(SUMS)], load[:, -len(SUMS) :].unbind(dim=1)
    shares = counts / counts.mean(dim=1, keepdim=True)
    most, least = shares.amax(dim=1), shares.amin(dim=1)
    found: dict[str, float | None] = {
        "experts/load_max": float(most.mean()),
        "experts/load_max_layer": float(most.max()),
        "experts/load_min": float(least.mean()),
        "experts/router_entropy": float((entropy / tokens).mean()),
        "experts/replayed": float((given / tokens).mean()),
    }
    if given.all():
        found["experts/replay_differs"] = float((differing / given).mean())
    return found


def _of_scope(metrics: TokenMetrics, scope: str, rows: list[int]) -> dict[str, float | None]:
    """Compute all metrics of the sources ``rows``."""
    found: dict[str, float | None] = {}
    for metric in _MEASURES:
        if metric != "teacher_kl" or metrics.taught:
            found |= _statistics(metrics, metric, scope, rows)
    sums = _sums(metrics, rows)
    for metric, columns in _MASKED.items():
        found[f"{metric}/{scope}"] = _mean(sum(sums[column] for column in columns), sums[_RL])
    told = {name: moments.statistics(rows, 0, sums[_RL]) for name, moments in metrics.extra.items()}
    for name, values in told.items():
        if name.startswith(_CUSTOM):
            found |= {f"{name}{ending}/{scope}": value for ending, value in values.items()}
    # After all deviations and bounds: of a function that returns both x and x_max, x_max is the one that it returned.
    return found | {f"{name}/{scope}": values[""] for name, values in told.items()}


def _statistics(metrics: TokenMetrics, metric: str, scope: str, rows: list[int]) -> dict[str, float | None]:
    tokens = _sums(metrics, rows)[_TOKENS[metric]]
    values = metrics.moments.statistics(rows, _MEASURES.index(metric), tokens)
    return {f"{metric}{ending}/{scope}": value for ending, value in values.items()}


def _sums(metrics: TokenMetrics, rows: Iterable[int]) -> dict[str, float]:
    return dict(zip(COLUMNS, metrics.sums[list(rows)].sum(dim=0).tolist(), strict=True))


def _named_tools(metrics: TokenMetrics, environment: str) -> list[tuple[str, int]]:
    """List the tools of an environment that ECHO trained, and their rows; no more than ``NAMED_TOOLS``."""
    counts = metrics.sums[:, COLUMNS.index(_ECHO)].tolist()
    found = [
        (tool, row) for row, (one, tool) in enumerate(metrics.sources) if one == environment and tool and counts[row]
    ]
    return sorted(sorted(found, key=lambda each: -counts[each[1]])[:NAMED_TOOLS])


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None
