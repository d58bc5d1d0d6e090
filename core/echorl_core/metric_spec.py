"""What a role says of a metric that it exports: name, type, labels, meaning. docs/metrics.md is made from these."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MetricSpec:
    """What a role says of one metric that it exports."""

    name: str
    """The name as Prometheus shows it; a histogram's lacks ``_bucket``, ``_sum`` and ``_count``."""
    type: str
    """The metric's kind: counter, gauge or histogram."""
    labels: tuple[str, ...]
    text: str

    @property
    def family(self) -> str:
        """The name as client libraries want it: a counter's without ``_total``."""
        return self.name.removesuffix("_total") if self.type == "counter" else self.name
