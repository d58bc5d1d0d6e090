"""Writes docs/operator/metrics.md: ``python -m tools.operator_metrics_page > docs/operator/metrics.md``."""

import ast
import inspect
import sys
from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise

from echorl_broker.metrics import FORGOTTEN_AFTER_S, BrokerMetrics, State
from echorl_core.metric_spec import MetricSpec
from echorl_core.wire.sandboxes import Why
from echorl_operator.accounting.restarts import Cause
from echorl_operator.accounting.usage import GpuState
from echorl_operator.kube.connection import Connection
from echorl_operator.kube.credentials import in_cluster
from echorl_operator.kube.lists import StreamSettings
from echorl_operator.metrics import Metrics
from echorl_operator.orchestrators.tokens import Tokens
from echorl_operator.process import Operator, Options
from echorl_operator.settings import Settings

_HEAD = """# Metrics of the operator

Generated from the code by `make generate`. Served at `/metrics` on port 9090. A run's own processes have metrics too,
each at its `/metrics`.

Every process tells of itself; only the leader tells of runs (`runs`, `checkpoint_age_seconds`, `gpu_seconds_total`,
`restarts_total`, `first_step_seconds`, `lost_steps`), so a sum over the operator's pods counts no run twice. Counters
and histograms begin at 0 with each process, as Prometheus expects. What happens while no operator leads shows in a
run's status and not here, but for lost steps: these are found by whoever leads when the next attempt is prepared.

Only `checkpoint_age_seconds` and `watch_age_seconds` have series by namespace, and only the former by run. All other
labels take values of small fixed sets.
"""

_BROKER = f"""## The broker of sandboxes

Served at `/metrics` on port 9090 of each of its pods. Every replica counts what it did itself, so sum over them; but
each shows all pods that there are (`sandboxes`), as they were at its newest look, every 30 s: take the maximum. A run
without pods or requests for {FORGOTTEN_AFTER_S / 3600:.0f} h has no series any more. Label `reason` of
`sandboxes_failed_total` is a [loss](../sandboxes.md#pod-in-a-cluster).
"""

_GPU = "echorl_operator_gpu_seconds_total"
_QUESTIONS = {
    "share of GPU time that makes new steps": f'sum(rate({_GPU}{{state="useful"}}[1h])) / sum(rate({_GPU}[1h]))',
    "GPUs that wait for a node": f'sum(rate({_GPU}{{state="waiting"}}[5m]))',
    "what restarts runs": "sum by (role, cause) (increase(echorl_operator_restarts_total[1d]))",
    "steps that 9 of 10 restarts lose at most": (
        "histogram_quantile(0.9, sum by (le) (rate(echorl_operator_lost_steps_bucket[1d])))"
    ),
    "runs whose checkpoint is older than an hour": "echorl_operator_checkpoint_age_seconds > 3600",
    "nobody leads": "sum(echorl_operator_leader) < 1",
    "why sandboxes wait": "sum by (namespace, run, reason) (echorl_broker_sandboxes_waiting)",
    "a watch that has gone silent": f"max(echorl_operator_watch_age_seconds) > {StreamSettings().longest_quiet_s:.0f}",
}


def declared() -> list[MetricSpec]:
    """All metrics of a process, sorted by name."""
    metrics = Metrics()
    # Nothing is opened: parts declare their metrics when they are made.
    connection = Connection(in_cluster(), metrics)
    options = Options(instance="page", lease_namespace="page")
    tokens = Tokens(b"never used: no run is looked at here")
    Operator(options, Settings(operator_version="page"), tokens, connection, metrics, on_lost=lambda _: None)
    return sorted(metrics.declared, key=lambda metric: metric.name)


def broker_declared() -> list[MetricSpec]:
    """All metrics of a broker, sorted by name."""
    return sorted(BrokerMetrics().declared, key=lambda metric: metric.name)


def page() -> str:
    """The page as Markdown."""
    asked = [f"| {question} | `{query}` |" for question, query in _QUESTIONS.items()]
    questions = ["## Questions that they answer", "", "| question | query |", "|---|---|", *asked, ""]
    operator = [_HEAD, _table(declared()), *_values("state", GpuState), *_values("cause", Cause)]
    waiting = _values("reason` of `echorl_broker_sandboxes_waiting", Why)
    broker = [_BROKER, _table(broker_declared()), *waiting, *_values("state` of `echorl_broker_sandboxes", State)]
    return "\n".join([*operator, *broker, *questions])


def _table(metrics: list[MetricSpec]) -> str:
    rows = [_row(metric) for metric in metrics]
    return "\n".join(["| name | type | labels | meaning |", "|---|---|---|---|", *rows, ""])


def _row(metric: MetricSpec) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.type} | {labels} | {metric.text} |"


def _values(label: str, values: type[StrEnum]) -> Iterator[str]:
    yield f"## Label `{label}`\n\n| value | meaning |\n|---|---|"
    for value, meaning in _meanings(values):
        yield f"| `{value}` | {meaning} |"
    yield ""


def _meanings(values: type[StrEnum]) -> Iterator[tuple[str, str]]:
    """Each value and the docstring below it."""
    body = ast.parse(inspect.getsource(values)).body[0]
    assert isinstance(body, ast.ClassDef)  # noqa: S101 - that is what was asked for
    for statement, text in pairwise(body.body):
        match statement, text:
            case ast.Assign(value=ast.Constant(value=value)), ast.Expr(value=ast.Constant(value=str(meaning))):
                yield str(value), " ".join(meaning.replace("``", "`").split())


if __name__ == "__main__":
    sys.stdout.write(page())
