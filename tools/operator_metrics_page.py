"""Writes docs/operator/metrics.md: ``python -m tools.operator_metrics_page > docs/operator/metrics.md``."""

import ast
import inspect
import sys
from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise

from echorl_core.metric_spec import MetricSpec
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


def page() -> str:
    """The page as Markdown."""
    rows = [_row(metric) for metric in declared()]
    table = "\n".join(["| name | type | labels | meaning |", "|---|---|---|---|", *rows])
    asked = [f"| {question} | `{query}` |" for question, query in _QUESTIONS.items()]
    questions = ["## Questions that they answer", "", "| question | query |", "|---|---|", *asked, ""]
    return "\n".join([_HEAD, table, "", *_values("state", GpuState), *_values("cause", Cause), *questions])


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
