"""``GET /metrics``: what the parts count, read when Prometheus asks. Nothing is kept twice."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as PrometheusCollector

PREFIX = "echorl_orchestrator"
_UPDATE_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


@dataclass(frozen=True)
class Reading:
    """Values of one scrape; names without the prefix."""

    gauges: Mapping[str, float | None]
    counters: Mapping[str, float]
    totals: Mapping[str, int]
    """``Tally.totals``; ``<family>/<label>`` becomes one labelled series."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """Mean reward of the last step, by environment."""


class _Scrape(PrometheusCollector):
    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Nothing: names are known when they are read."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All families."""
        reading = self._read()
        for name, value in reading.gauges.items():
            if value is not None:
                yield GaugeMetricFamily(f"{PREFIX}_{name}", name.replace("_", " "), value=value)
        for name, value in reading.counters.items():
            yield CounterMetricFamily(f"{PREFIX}_{name}", name.replace("_", " "), value=value)
        reward = GaugeMetricFamily(f"{PREFIX}_reward", "mean reward of the last step", labels=["environment"])
        for name, value in reading.rewards.items():
            if value is not None:
                reward.add_metric([name], value)
        yield reward
        yield from _families(reading.totals)


def _families(totals: Mapping[str, int]) -> Iterator[Metric]:
    families: dict[str, CounterMetricFamily] = {}
    for key, value in sorted(totals.items()):
        name, _, label = key.partition("/")
        if name not in families:
            families[name] = CounterMetricFamily(f"{PREFIX}_{name}", f"{name} by kind", labels=["kind"])
        families[name].add_metric([label], value)
    return iter(families.values())


class Metrics:
    """The registry of this role."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Scrape(read))
        self._update = Histogram(
            f"{PREFIX}_weight_update_seconds",
            "parts of an engine's weight update",
            ["part"],
            registry=self.registry,
            buckets=_UPDATE_BUCKETS,
        )

    def engine_updated(self, record: Mapping[str, object]) -> None:
        """Count one engine's finished update."""
        for part in ("stage", "pause", "apply", "probe"):
            seconds = record.get(f"{part}_s")
            if isinstance(seconds, float):
                self._update.labels(part).observe(seconds)
