"""Hands what the accounts of runs find to Prometheus. Only passes feed it, and only a leader makes passes."""

import time
from collections.abc import Callable

from echorl_operator.accounting.restarts import combinations
from echorl_operator.accounting.runs import RunAccounts
from echorl_operator.metrics import Metrics, Sample
from echorl_operator.observed.runs import RunKey
from echorl_operator.observed.world import Observed
from echorl_operator.plan.actions import Plan


class RunMetrics:
    """The runs that this process looks after, as metrics. A process that never led shows no series of runs."""

    def __init__(
        self, metrics: Metrics, gpu_resource: str, leading: Callable[[], bool], wall: Callable[[], float] = time.time
    ) -> None:
        """Declare the metrics.

        Args:
            metrics: Where to count.
            gpu_resource: Of nodes, such as ``nvidia.com/gpu``.
            leading: Whether this process looks after runs.
            wall: Seconds since the epoch.
        """
        self._metrics, self._leading, self._wall = metrics, leading, wall
        self._accounts = RunAccounts(gpu_resource)
        for restart in combinations():
            # From 0: the first restart is an increase then, and no new series.
            metrics.restarts.labels(restart.role, restart.cause)
        metrics.at_scrape("runs", "Runs, by where they stand.", ("phase",), self._phases)
        metrics.at_scrape(
            "failed_runs", "Failed runs that are still there, by the reason of their end.", ("reason",), self._failures
        )
        metrics.at_scrape(
            "checkpoint_age_seconds",
            "Since the newest committed checkpoint of a run that is neither suspended nor ended.",
            ("namespace", "run"),
            self._ages,
        )
        metrics.at_scrape(
            "autoscaled_engines",
            "Engines that autoscaling wants, of runs that it decides for.",
            ("namespace", "run"),
            self._autoscaled,
        )
        metrics.at_scrape(
            "missing_trainer_pods",
            "Trainer pods that a run goes on without, of runs whose elastic gang was made smaller.",
            ("namespace", "run"),
            self._missing_pods,
        )
        metrics.counter_at_scrape(
            "gpu_seconds",
            "GPUs that trainer pods and engines ask for, times seconds, by what they do. Of this process: what passes "
            "while no operator leads is not counted.",
            ("role", "state"),
            self._gpu_seconds,
        )

    def observe(self, observed: Observed) -> None:
        """Count what a pass learns of a run as it begins."""
        findings = self._accounts.observe(observed)
        for restart in findings.restarts:
            self._metrics.restarts.labels(restart.role, restart.cause).inc()
        self._metrics.notices.inc(findings.notices)
        if findings.first_step_s is not None:
            self._metrics.first_step.observe(findings.first_step_s)
        if findings.lost_steps is not None:
            self._metrics.lost_steps.observe(findings.lost_steps)

    def planned(self, key: RunKey, plan: Plan) -> None:
        """What the pass is about to write."""
        self._accounts.planned(key, plan.restart)

    def forget(self, key: RunKey) -> None:
        """Close the account of a run that is gone."""
        self._accounts.forget(key, self._wall())

    def _phases(self) -> list[Sample]:
        return [((phase,), float(count)) for phase, count in self._accounts.phases().items()] if self._leading() else []

    def _failures(self) -> list[Sample]:
        if not self._leading():
            return []
        return [((reason,), float(count)) for reason, count in self._accounts.failures().items()]

    def _ages(self) -> list[Sample]:
        if not self._leading():
            return []
        return [((key.namespace, key.name), age) for key, age in self._accounts.checkpoint_ages(self._wall())]

    def _autoscaled(self) -> list[Sample]:
        if not self._leading():
            return []
        return [((key.namespace, key.name), float(engines)) for key, engines in self._accounts.autoscaled()]

    def _missing_pods(self) -> list[Sample]:
        if not self._leading():
            return []
        return [((key.namespace, key.name), float(pods)) for key, pods in self._accounts.missing_trainer_pods()]

    def _gpu_seconds(self) -> list[Sample]:
        if not self._leading():
            return []
        return [(key, seconds) for key, seconds in self._accounts.gpu_seconds(self._wall()).items()]
