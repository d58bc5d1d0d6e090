"""``GET /metrics``: what the parts count, read when Prometheus asks. Nothing is kept twice."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector as PrometheusCollector

from echorl_core.metric_spec import MetricSpec
from echorl_core.wire.engine import DeltaUse
from echorl_orchestrator.engines.engine_metrics import Distribution
from echorl_orchestrator.metrics.families import (
    FAMILIES,
    PREFIX,
    UPDATE_PARTS,
    WEIGHT_DOWNLOAD_BYTES,
    WEIGHT_DOWNLOADS,
    WEIGHT_UPDATE,
)

Series = Mapping[tuple[str, ...], float | None]
"""Value by label values, in the order of the family's labels; None is not shown."""
_UPDATE_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


@dataclass(frozen=True)
class Reading:
    """Values of one scrape, by family: its name without prefix and ``_total``. A family without a value is left out."""

    values: Mapping[str, Series]
    distributions: Mapping[str, Distribution] = field(default_factory=dict)


class _Scrape(PrometheusCollector):
    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Nothing: names are checked against what is declared when they are read."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All families that have a value.

        Raises:
            KeyError: the reading holds a family that is not declared.
        """
        reading = self._read()
        specs = {spec.family.removeprefix(f"{PREFIX}_"): spec for spec in FAMILIES}
        for name, series in reading.values.items():
            family = _empty(specs[name])
            for labels, value in series.items():
                if value is not None:
                    family.add_metric(list(labels), value)
            if family.samples:
                yield family
        for name, distribution in reading.distributions.items():
            yield HistogramMetricFamily(
                specs[name].family, specs[name].text, buckets=distribution.buckets, sum_value=distribution.total
            )


def _empty(declared: MetricSpec) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if declared.type == "counter" else GaugeMetricFamily
    return kind(declared.family, declared.text, labels=declared.labels)


class Metrics:
    """The registry of this role."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Scrape(read))
        self._update = Histogram(
            WEIGHT_UPDATE.name,
            WEIGHT_UPDATE.text,
            WEIGHT_UPDATE.labels,
            registry=self.registry,
            buckets=_UPDATE_BUCKETS,
        )
        self._downloads = self._counter(WEIGHT_DOWNLOADS)
        self._download_bytes = self._counter(WEIGHT_DOWNLOAD_BYTES)
        for use in get_args(DeltaUse):
            self._downloads.labels(use)
            self._download_bytes.labels(use)

    def engine_updated(self, record: Mapping[str, object]) -> None:
        """Count one engine's finished update."""
        for part in UPDATE_PARTS:
            seconds = record.get(f"{part}_s")
            if isinstance(seconds, float):
                self._update.labels(part).observe(seconds)
        received, use = record.get("received_bytes"), record.get("delta")
        # Otherwise another engine of the host has fetched it, or it was there.
        if isinstance(received, int) and isinstance(use, str) and (received or use != "none"):
            self._downloads.labels(use).inc()
            self._download_bytes.labels(use).inc(received)

    def _counter(self, declared: MetricSpec) -> Counter:
        return Counter(declared.family, declared.text, declared.labels, registry=self.registry)
