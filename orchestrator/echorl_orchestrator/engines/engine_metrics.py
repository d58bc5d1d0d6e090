"""Metrics of all engines as one: gauges over the engines that live, counters and histograms that never go back."""

import re
from collections import defaultdict
from dataclasses import dataclass, field

GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage",
}
COUNTERS = {
    "vllm:prefix_cache_queries_total": "prefix_queries_total",
    "vllm:prefix_cache_hits_total": "prefix_hits_total",
    "vllm:prompt_tokens_total": "prompt_tokens_total",
    "vllm:generation_tokens_total": "generation_tokens_total",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_draft_tokens_total",
    "vllm:num_preemptions_total": "preemptions_total",
    "vllm:request_success_total": "requests_total",
}
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": "time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds": "inter_token_latency_seconds",
}
_LE = re.compile(r'[{,]le="([^"]+)"')
_SERIES = re.compile(r"(vllm:\w+?)(_bucket|_sum|_count)?(?:\{| )")
# Engines count cache blocks apart when one server runs several of them.
_LARGEST = frozenset({"kv_usage"})


@dataclass(frozen=True)
class Distribution:
    """A histogram over the pool, as Prometheus writes one."""

    buckets: list[tuple[str, float]]
    """Upper bound as the engine wrote it, and how many were at or below; ascending, the last bound is +Inf."""
    total: float
    """The sum of all that was observed, in seconds."""


@dataclass
class _Seen:
    """One start of one engine."""

    gauges: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)


def parse(text: str) -> dict[str, float]:
    """Prometheus text to our names, series of one family summed over their labels; other families are left out.

    A histogram becomes ``<name>/<upper bound>`` and ``<name>/sum``.
    """
    values: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        name = _name(line) if line.startswith("vllm:") else None
        if name is None:
            continue
        value = float(line.rsplit(" ", 1)[1])
        values[name] = max(values[name], value) if name in _LARGEST else values[name] + value
    return dict(values)


def _name(line: str) -> str | None:
    whole = line.split("{", 1)[0].split(" ", 1)[0]
    ours = GAUGES.get(whole) or COUNTERS.get(whole)
    if ours is not None:
        return ours
    match = _SERIES.match(line)
    histogram = HISTOGRAMS.get(match[1]) if match is not None else None
    if match is None or histogram is None:
        return None
    if match[2] == "_sum":
        return f"{histogram}/sum"
    bound = _LE.search(line) if match[2] == "_bucket" else None
    return None if bound is None else f"{histogram}/{bound[1]}"


class EngineMetrics:
    """Sums over the pool. A counter that falls has been reset, so its new value is all growth."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = defaultdict(float, dict.fromkeys(COUNTERS.values(), 0.0))
        self._seen: dict[str, _Seen] = {}
        """By boot id. Engines that are gone keep their counts, so that one that is found again is not counted twice."""

    def observe(self, engine: str, text: str, *, fresh: bool = True) -> None:
        """Take in one engine's metrics.

        Args:
            engine: its boot id.
            text: in Prometheus' format.
            fresh: nobody used it before this pool found it. Else what it counted up to the first look is not growth:
                an orchestrator that is restarted must not count again what its predecessor has.
        """
        values = parse(text)
        counts = {name: value for name, value in values.items() if name not in GAUGES.values()}
        seen = self._seen.get(engine)
        if seen is None:
            seen = self._seen[engine] = _Seen(counts={} if fresh else counts)
        for name, now in counts.items():
            before = seen.counts.get(name, 0.0)
            self._totals[name] += now - before if now >= before else now
        seen.counts = counts
        seen.gauges = {name: value for name, value in values.items() if name in GAUGES.values()}

    def forget(self, engine: str) -> None:
        """An engine is gone: its gauges go, what it counted stays."""
        if engine in self._seen:
            self._seen[engine].gauges = {}

    def snapshot(self) -> dict[str, float]:
        """``running``, ``waiting`` (sums), ``kv_usage_mean``, ``kv_usage_max`` (share of 1), and the totals."""
        living = [seen.gauges for seen in self._seen.values() if seen.gauges]
        usage = [gauges["kv_usage"] for gauges in living if "kv_usage" in gauges]
        return {
            "running": sum(gauges.get("running", 0.0) for gauges in living),
            "waiting": sum(gauges.get("waiting", 0.0) for gauges in living),
            "kv_usage_mean": sum(usage) / len(usage) if usage else 0.0,
            "kv_usage_max": max(usage, default=0.0),
            **{name: self._totals[name] for name in COUNTERS.values()},
        }

    def distributions(self) -> dict[str, Distribution]:
        """Histograms that any engine has shown, by name."""
        distributions = {}
        for name in HISTOGRAMS.values():
            bounds = [key.split("/", 1)[1] for key in self._totals if key.startswith(f"{name}/")]
            bounds = sorted((bound for bound in bounds if bound != "sum"), key=float)
            if bounds:
                buckets = [(bound, self._totals[f"{name}/{bound}"]) for bound in bounds]
                distributions[name] = Distribution(buckets, self._totals[f"{name}/sum"])
        return distributions
