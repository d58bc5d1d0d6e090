"""What the operator counts. One registry a process; names are ``echorl_operator_<what>_<unit>``, the broker's alike.

``python -m tools.operator_metrics_page`` writes docs/operator/metrics.md from what is declared here, by the broker, and
by those who declare gauges that are read at each scrape.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from echorl_core.metric_spec import MetricSpec

PREFIX = "echorl_operator"

_REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_WAIT_BUCKETS = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_START_BUCKETS = (10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)
_STEP_BUCKETS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

Sample = tuple[Sequence[str], float]
"""Label values of one series, and its value."""


class _AtScrape(Collector):
    """A metric that is read when Prometheus asks, so that an age is right at that moment."""

    def __init__(
        self,
        family: Callable[[], GaugeMetricFamily | CounterMetricFamily],
        read: Callable[[], Iterable[Sample]],
    ) -> None:
        self._family, self._read = family, read

    def describe(self) -> Iterator[Metric]:
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        family = self._family()
        for values, value in self._read():
            family.add_metric(list(values), value)
        yield family


class ProcessMetrics:
    """One registry, and what every process counts that calls the API server."""

    def __init__(self, prefix: str, registry: CollectorRegistry | None = None) -> None:
        """``prefix``: of all names; ``registry``: where to count, a fresh one if there is none."""
        self._prefix = prefix
        self.registry = CollectorRegistry() if registry is None else registry
        self.declared: list[MetricSpec] = []
        self.api_requests = self._counter("api_requests", "Calls of the API server.", ("verb", "resource", "code"))
        self.api_seconds = self._histogram(
            "api_request_duration_seconds", "Until the whole reply was read.", ("verb", "resource"), _REQUEST_BUCKETS
        )

    def at_scrape(self, name: str, text: str, labels: Sequence[str], read: Callable[[], Iterable[Sample]]) -> None:
        """A gauge ``<prefix>_<name>`` whose series ``read`` gives at each scrape."""
        full = self._declare(name, "gauge", labels, text)
        self.registry.register(_AtScrape(lambda: GaugeMetricFamily(full, text, labels=labels), read))

    def counter_at_scrape(
        self, name: str, text: str, labels: Sequence[str], read: Callable[[], Iterable[Sample]]
    ) -> None:
        """A counter ``<prefix>_<name>_total``; the same."""
        full = self._declare(name, "counter", labels, text)
        self.registry.register(_AtScrape(lambda: CounterMetricFamily(full, text, labels=labels), read))

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(self._declare(name, "counter", labels, text), text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(self._declare(name, "gauge", (), text), text, registry=self.registry)

    def _histogram(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        full = self._declare(name, "histogram", labels, text)
        return Histogram(full, text, labels, buckets=buckets, registry=self.registry)

    def _declare(self, name: str, kind: str, labels: Sequence[str], text: str) -> str:
        """The full name, without a counter's ``_total``."""
        full = f"{self._prefix}_{name}"
        self.declared.append(MetricSpec(f"{full}_total" if kind == "counter" else full, kind, tuple(labels), text))
        return full


class Metrics(ProcessMetrics):
    """What more than one part of the operator counts; gauges of one part alone are declared by it."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """``registry``: where to count; a fresh one if there is none."""
        super().__init__(PREFIX, registry)
        self.watch_events = self._counter("watch_events", "Events that arrived.", ("resource", "type"))
        self.watch_relists = self._counter("watch_relists", "Lists that a watch needed.", ("resource", "reason"))
        self.leader = self._gauge("leader", "1 while this process leads.")
        self.leader_transitions = self._counter("leader_transitions", "Times that this process began to lead.")
        self.queue_adds = self._counter("queue_adds", "Keys put into the queue.")
        self.queue_wait = self._histogram("queue_wait_seconds", "From due to worked on.", (), _WAIT_BUCKETS)
        self.reconciles = self._counter("reconciles", "Passes over a run.", ("result",))
        self.reconcile_seconds = self._histogram("reconcile_duration_seconds", "Of one pass.", (), _WAIT_BUCKETS)
        self.breaker_open = self._gauge("api_breaker_open", "1 while the API server does not answer.")
        self.breaker_opened = self._counter("api_breaker_opened", "Times that the API server stopped answering.")
        self.events = self._counter("events", "Kubernetes events of runs.", ("result",))
        self.polls = self._counter("orchestrator_polls", "Answers of orchestrators.", ("result",))
        self.restarts = self._counter(
            "restarts", "Restarts: of a gang, an orchestrator, an engine, a prepare pod.", ("role", "cause")
        )
        self.notices = self._counter(
            "notices", "Notices: pods, a gang's as one, that somebody drained, preempted, evicted or deleted."
        )
        self.first_step = self._histogram(
            "first_step_seconds",
            "From a run's creation to its first step; of runs that were not suspended before it.",
            (),
            _START_BUCKETS,
        )
        self.lost_steps = self._histogram(
            "lost_steps", "Steps that an attempt after the first has to make again.", (), _STEP_BUCKETS
        )
