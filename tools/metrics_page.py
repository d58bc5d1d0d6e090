"""Writes docs/metrics.md from what the roles declare: ``python -m tools.metrics_page > docs/metrics.md``."""

import sys

from echorl_core.metric_spec import MetricSpec
from echorl_orchestrator.metrics.families import AT_UPDATES, FAMILIES
from echorl_orchestrator.metrics.process_counters import DECLARED as COUNTED
from echorl_trainer.metrics import Metrics as TrainerMetrics
from tools.operator_metrics_page import broker_declared
from tools.operator_metrics_page import declared as operator_declared

_HEAD = """# Metrics

Generated from the code by `make generate`. Every role serves `/metrics`; names are `echorl_<role>_<what>_<unit>`. What
only counts has no unit but what is counted; shares are `_ratio`, from 0 to 1; log-likelihoods, entropies and
divergences are in nats.

| role | where | how many |
|---|---|---|
| orchestrator | its HTTP port (8100 in pods) | one a run |
| trainer | `metricsPort + local rank` (8200 and up in pods) | one a rank |
| inference | `vllm:*` at the engine's port; added up over the pool in `echorl_orchestrator_engines_*` | one an engine |
| operator | port 9090; [operator/metrics.md](operator/metrics.md) says what its labels mean | one a replica |
| broker | port 9090; [the same page](operator/metrics.md#the-broker-of-sandboxes) | one a replica |

**Series are few.** No label holds an episode, task, request or user. `environment` takes the names in the manifest, and
`all` for all training environments together; `engine` the addresses of the engines there are; other labels take values
of small fixed sets. Which run a series belongs to is said by the labels of the scrape and not by the process:
dashboards and alerts expect `namespace` and `run` on every target of a run.

**Ranks.** A trainer's losses and token counts are of the whole gang and the same on every rank: take their maximum,
never their sum.

**Restarts.** Counters begin at 0 with each process, as Prometheus expects; no counter goes back otherwise. Beside
these, the orchestrator shows the usual `process_*` and `python_*`.
"""


def roles() -> dict[str, list[MetricSpec]]:
    """What is declared, by role; sorted by name."""
    declared: dict[str, list[MetricSpec]] = {
        "orchestrator": [*FAMILIES, *AT_UPDATES, *COUNTED],
        "trainer": [*TrainerMetrics(dict).declared],
        "operator": [*operator_declared()],
        "broker": [*broker_declared()],
    }
    return {role: sorted(metrics, key=lambda metric: metric.name) for role, metrics in declared.items()}


def page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for role, metrics in roles().items():
        parts += [f"## {role.capitalize()}", "", "| name | type | labels | meaning |", "|---|---|---|---|"]
        parts += [_row(metric) for metric in metrics]
        parts.append("")
    return "\n".join(parts)


def _row(metric: MetricSpec) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.type} | {labels} | {metric.text} |"


if __name__ == "__main__":
    sys.stdout.write(page())
