"""The table of metrics has every metric of every role."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from echorl_orchestrator.status.metrics_registry import Metrics as OrchestratorMetrics
from echorl_orchestrator.status.metrics_registry import Reading
from echorl_trainer.metrics import Metrics as TrainerMetrics
from tools.metrics_page import page, roles

ROOT = Path(__file__).resolve().parents[3]
LITERAL = re.compile(r'"(echorl_(?:orchestrator|trainer|operator|broker)_[a-z_]+)"')


def families(registry: CollectorRegistry) -> set[str]:
    return {f"{one.name}_total" if one.type == "counter" else one.name for one in registry.collect()}


def test_the_page_is_as_the_code_is() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == page(), "stale: run `make generate`"


def test_names_are_of_one_scheme_and_stand_once() -> None:
    for role, metrics in roles().items():
        names = [one.name for one in metrics]
        assert len(names) == len(set(names))
        assert all(re.fullmatch(rf"echorl_{role}_[a-z_]+", name) for name in names)
        assert all(one.name.endswith("_total") == (one.type == "counter") for one in metrics)


def test_registries_hold_nothing_that_is_not_declared() -> None:
    known = {role: {one.name for one in metrics} for role, metrics in roles().items()}
    trainer = families(TrainerMetrics(dict).registry)
    assert trainer == known["trainer"]
    orchestrator = families(OrchestratorMetrics(lambda: Reading({})).registry)
    assert orchestrator <= known["orchestrator"]


def test_no_label_can_grow_with_the_work() -> None:
    bounded = {
        "cause", "code", "component", "engine", "environment", "filter", "k", "kind", "monitor", "namespace", "part",
        "phase", "reason", "resource", "result", "role", "run", "state", "type", "verb", "which",
    }  # fmt: skip
    assert {label for metrics in roles().values() for one in metrics for label in one.labels} <= bounded
