"""What the operator counts of itself. One registry a process; names are ``echorl_operator_<what>_<unit>``."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX = "echorl_operator"

_REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_WAIT_BUCKETS = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

Sample = tuple[Sequence[str], float]
"""Label values of one series, and its value."""


class _AtScrape(Collector):
    """A gauge that is read when Prometheus asks, so that an age is right at that moment."""

    def __init__(self, name: str, text: str, labels: Sequence[str], read: Callable[[], Iterable[Sample]]) -> None:
        self._name, self._text, self._labels, self._read = name, text, labels, read

    def describe(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for values, value in self._read():
            family.add_metric(list(values), value)
        yield family


class Metrics:
    """The registry, and the counters of API calls, watches, election, queue and long polls."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """``registry``: where to count; a fresh one if there is none."""
        self.registry = CollectorRegistry() if registry is None else registry
        self.api_requests = self._counter("api_requests", "Calls of the API server.", ("verb", "resource", "code"))
        self.api_seconds = self._histogram(
            "api_request_duration_seconds", "Until the whole reply was read.", ("verb", "resource"), _REQUEST_BUCKETS
        )
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

    def at_scrape(self, name: str, text: str, labels: Sequence[str], read: Callable[[], Iterable[Sample]]) -> None:
        """A gauge ``echorl_operator_<name>`` whose series ``read`` gives at each scrape."""
        self.registry.register(_AtScrape(f"{PREFIX}_{name}", text, labels, read))

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", text, labels, buckets=buckets, registry=self.registry)
