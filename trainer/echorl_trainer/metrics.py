"""Prometheus metrics of one rank, in a registry of their own; names are ``echorl_trainer_<what>_<unit>``."""

import math
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from echorl_core import jsonsafe
from echorl_core.metric_spec import MetricSpec
from echorl_core.wire.reports import StepReport

PREFIX = "echorl_trainer"
PARTS = ("wait_batch", "forward_backward", "optimizer", "publish", "checkpoint")
"""Parts of a turn of the loop; what is left of its length is ``other``."""


class _AtScrape(Collector):
    def __init__(self, declared: MetricSpec, read: Callable[[], Mapping[str, float]]) -> None:
        self._declared, self._read = declared, read

    def describe(self) -> Iterator[Metric]:
        yield CounterMetricFamily(self._declared.family, self._declared.text, labels=self._declared.labels)

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._declared.family, self._declared.text, labels=self._declared.labels)
        for label, value in self._read().items():
            family.add_metric([label] if self._declared.labels else [], value)
        yield family


class Metrics:
    """What one rank exports. Token counts and losses are of the whole gang, and the same on every rank."""

    def __init__(self, phase_seconds: Callable[[], Mapping[str, float]]) -> None:
        """``phase_seconds``: so far, by phase."""
        self.registry = CollectorRegistry()
        self.declared: list[MetricSpec] = []
        self.step = self._gauge("step", "Last trained step.")
        self.policy_version = self._gauge("policy_version", "Last published policy version.")
        self.loss = self._gauge("loss", "Loss of the last step: rl, ce, total.", ("component",))
        self.env_nll = self._gauge(
            "env_nll_nats", "Mean negative log-likelihood of environment tokens in the last step.", ("environment",)
        )
        self.experts = self._gauge(
            "experts",
            "Of mixtures of experts, in the last step: load_max, load_max_layer, load_min, router_entropy,"
            " replayed, replay_differs.",
            ("kind",),
        )
        self.grad_norm = self._gauge("grad_norm", "Norm of the last step's gradient, before clipping.")
        self.learning_rate = self._gauge("learning_rate", "Of the last step.")
        self.logprob_gap = self._gauge(
            "logprob_gap_nats",
            "Largest gap of engine and trainer in the last step, over tokens that their own version scored.",
        )
        self.trained_tokens = self._counter("trained_tokens", "Tokens with a weight in any component, all ranks.")
        self.packed_tokens = self._counter("packed_tokens", "Tokens that went through the model, all ranks.")
        self.seconds = self._counter(
            "step_seconds",
            "Wall seconds of steps by part: wait_batch, forward_backward, optimizer, publish, checkpoint, other.",
            ("part",),
        )
        self.checkpoints = self._counter(
            "checkpoints", "Saves of this rank by how they ended: committed, abandoned, failed.", ("state",)
        )
        self.checkpoint_seconds = self._gauge(
            "checkpoint_seconds", "Length of the last save, from its start to the last file's sync."
        )
        self.checkpoint_write_seconds = self._counter(
            "checkpoint_write_seconds", "Seconds of writing, syncing and hashing checkpoints beside the loop."
        )
        self.checkpoint_stall_seconds = self._counter(
            "checkpoint_stall_seconds",
            "Seconds that the loop stood still for saves, by what for: copy to host memory, write, wait for a save "
            "under way, memory (checkpoint.memory).",
            ("part",),
        )
        self.checkpoint_waits = self._counter("checkpoint_waits", "Waits of the loop for a save that was under way.")
        self.memory_step = self._gauge(
            "memory_checkpoint_step", "Newest step that all ranks hold in memory (checkpoint.memory); NaN: none."
        )
        self.memory_step.set(math.nan)
        self.mirrored_step = self._gauge(
            "memory_checkpoint_mirrored_step",
            "Newest step that all neighbours hold in memory (checkpoint.memory.mirror); NaN: none.",
        )
        self.mirrored_step.set(math.nan)
        self.memory_bytes = self._gauge(
            "memory_checkpoint_bytes", "Host memory of this rank's own copies of its state, all of them."
        )
        self.exports = self._counter(
            "exports", "Exports of the weights alone by how they ended: written, failed.", ("state",)
        )
        self.export_seconds = self._gauge(
            "export_seconds", "Length of the last export, from its version's publication to the last file's sync."
        )
        self.publish_bytes = self._counter("publish_bytes", "Bytes of published weights.")
        self.publish_delta_bytes = self._counter("publish_delta_bytes", "Bytes of deltas beside published weights.")
        self.publish_changed = self._gauge(
            "publish_changed_ratio", "Share of elements that the last version changed; NaN: it has no delta."
        )
        self.sent_bytes = self._counter(
            "sent_weight_bytes",
            "Bytes of weights that were sent, by kind: whole, delta (over HTTP, cut-off ones included), broadcast.",
            ("kind",),
        )
        self.publish_seconds = self._gauge(
            "publish_seconds",
            "From the last update to the version's being visible to engines; the loop's own part is in step_seconds.",
        )
        self._at_scrape(
            "phase_seconds", "Wall seconds by phase, the one under way included.", ("phase",), phase_seconds
        )
        self._at_scrape(
            "json_non_finite",
            "Numbers in reports that were NaN or infinite, and went out as null.",
            (),
            lambda: {"": jsonsafe.replaced_count()},
        )
        for part in (*PARTS, "other"):
            self.seconds.labels(part)
        for state in ("committed", "abandoned", "failed"):
            self.checkpoints.labels(state)
        for state in ("written", "failed"):
            self.exports.labels(state)
        for form in ("whole", "delta", "broadcast"):
            self.sent_bytes.labels(form)
        for part in ("copy", "write", "wait", "memory"):
            self.checkpoint_stall_seconds.labels(part)

    def observe(self, report: StepReport) -> None:
        """Take over the values of one step; a null value leaves its gauge as it was."""
        self.step.set(report.step)
        self.trained_tokens.inc(report.trained_tokens)
        self.packed_tokens.inc(report.packed_tokens)
        self._observe_seconds(report.seconds)
        by_prefix = {"loss": self.loss, "env_nll": self.env_nll, "experts": self.experts}
        alone = {"optim/grad_norm": self.grad_norm, "optim/lr": self.learning_rate}
        for name, value in report.metrics.items():
            prefix, _, rest = name.partition("/")
            if value is not None and name in alone:
                alone[name].set(value)
            elif value is not None and rest and prefix in by_prefix:
                by_prefix[prefix].labels(rest).set(value)
        if report.gap.max_abs is not None:
            self.logprob_gap.set(report.gap.max_abs)

    def _observe_seconds(self, seconds: Mapping[str, float]) -> None:
        for part in PARTS:
            self.seconds.labels(part).inc(seconds.get(part, 0.0))
        known = sum(seconds.get(part, 0.0) for part in PARTS)
        self.seconds.labels("other").inc(max(0.0, seconds.get("step", 0.0) - known))

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(self._declare(name, "gauge", labels, text).family, text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(self._declare(name, "counter", labels, text).family, text, labels, registry=self.registry)

    def _at_scrape(
        self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], Mapping[str, float]]
    ) -> None:
        self.registry.register(_AtScrape(self._declare(name, "counter", labels, text), read))

    def _declare(self, name: str, kind: str, labels: tuple[str, ...], text: str) -> MetricSpec:
        full = f"{PREFIX}_{name}{'_total' if kind == 'counter' else ''}"
        self.declared.append(MetricSpec(full, kind, labels, text))
        return self.declared[-1]
