"""Metrics of all engines as one: gauges over the engines that live, counters that never go back."""

from collections import defaultdict

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
    "vllm:num_preemptions_total": "preemptions_total",
    "vllm:request_success_total": "requests_total",
    "vllm:time_to_first_token_seconds_sum": "ttft_seconds_sum",
    "vllm:time_to_first_token_seconds_count": "ttft_seconds_count",
    "vllm:inter_token_latency_seconds_sum": "itl_seconds_sum",
    "vllm:inter_token_latency_seconds_count": "itl_seconds_count",
}


def parse(text: str) -> dict[str, float]:
    """Prometheus text to our names, series of one family summed over their labels; other families are left out."""
    values: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        if not line.startswith("vllm:"):
            continue
        name = line.split("{", 1)[0].split(" ", 1)[0]
        ours = GAUGES.get(name) or COUNTERS.get(name)
        if ours is not None:
            values[ours] += float(line.rsplit(" ", 1)[1])
    return dict(values)


class EngineMetrics:
    """Sums over the pool. A counter that falls has been reset, so its new value is all growth."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = dict.fromkeys(COUNTERS.values(), 0.0)
        self._last: dict[str, dict[str, float]] = {}

    def observe(self, engine: str, text: str) -> None:
        """Take in one engine's metrics; ``engine`` is its boot id."""
        values = parse(text)
        last = self._last.get(engine, {})
        for name in self._totals:
            now, before = values.get(name, 0.0), last.get(name, 0.0)
            self._totals[name] += now - before if now >= before else now
        self._last[engine] = values

    def forget(self, engine: str) -> None:
        """An engine is gone: its gauges go, what it counted stays."""
        self._last.pop(engine, None)

    def snapshot(self) -> dict[str, float]:
        """``running``, ``waiting`` (sums), ``kv_usage_mean``, ``kv_usage_max`` (share of 1), and the totals."""
        living = list(self._last.values())
        usage = [values["kv_usage"] for values in living if "kv_usage" in values]
        return {
            "running": sum(values.get("running", 0.0) for values in living),
            "waiting": sum(values.get("waiting", 0.0) for values in living),
            "kv_usage_mean": sum(usage) / len(usage) if usage else 0.0,
            "kv_usage_max": max(usage, default=0.0),
            **self._totals,
        }
