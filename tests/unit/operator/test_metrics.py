"""Metrics as Prometheus reads them, and their page."""

from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from echorl_operator.accounting.restarts import Cause, Restart
from echorl_operator.kube.connection import Connection
from echorl_operator.kube.credentials import in_cluster
from echorl_operator.metrics import Metrics
from echorl_operator.names import PodRole
from echorl_operator.observed.runs import RunKey
from echorl_operator.observed.times import to_text
from echorl_operator.orchestrators.tokens import Tokens
from echorl_operator.plan.actions import Plan
from echorl_operator.process import Operator, Options
from echorl_operator.reconcile.run_metrics import RunMetrics
from echorl_operator.settings import Settings
from echorl_testing.operator.observed_worlds import NOW, observed, pod, run
from tools.operator_metrics_page import declared, page

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operator" / "metrics.md"
TRAINER = pod("one-trainer-0", PodRole.TRAINER, wants=(("nvidia.com/gpu", "8"),))
ORCHESTRATOR = pod("one-orchestrator", PodRole.ORCHESTRATOR)


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every series that is not 0, by name and the values of its sorted labels."""
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    found = (sample for family in families for sample in family.samples if not sample.name.endswith("_created"))
    return {(one.name, tuple(dict(sorted(one.labels.items())).values())): one.value for one in found if one.value}


class Leading:
    """A process that leads, or does not."""

    def __init__(self) -> None:
        self.leads, self.now, self.metrics = True, NOW, Metrics()
        self.of_runs = RunMetrics(self.metrics, "nvidia.com/gpu", lambda: self.leads, lambda: self.now)

    def look(self, after: float, **status: object) -> None:
        self.now = NOW + after
        self.of_runs.observe(observed(TRAINER, ORCHESTRATOR, run=run(dict(status)), now=self.now))


def test_the_page_is_as_the_code_is() -> None:
    assert PAGE.read_text() == page(), "stale: run `make generate`"


def test_every_name_begins_alike_and_stands_once() -> None:
    found = [one.name for one in declared()]
    assert all(name.startswith("echorl_operator_") for name in found)
    assert len(found) == len(set(found))


def test_series_by_namespace_and_run_are_few() -> None:
    by_run = {one.name for one in declared() if "run" in one.labels}
    by_namespace = {one.name for one in declared() if "namespace" in one.labels}
    counts = ("checkpoint_age_seconds", "autoscaled_engines", "missing_trainer_pods")
    assert by_run == {f"echorl_operator_{name}" for name in counts}
    assert by_namespace == by_run | {"echorl_operator_watch_age_seconds"}


def test_a_leader_shows_its_runs() -> None:
    one = Leading()
    checkpoint = {"step": 5, "committedAt": to_text(NOW - 60), "sizeBytes": 1}
    prepared = {"attempt": 1, "resumeStep": 0, "control": {"preparedAttempt": 1}, "checkpoint": checkpoint}
    one.look(0, phase="Starting", **prepared)
    one.look(10, phase="Running", step=7, **prepared)
    one.of_runs.planned(RunKey("ns", "one"), Plan(status={}, restart=Restart("trainer", Cause.OUT_OF_MEMORY)))
    again = {**prepared, "attempt": 2, "restartsByRole": {"trainer": 1}}
    one.look(30, phase="Restarting", step=7, timeline=[{"phase": "Restarting", "attempt": 2}], **again)
    one.look(40, phase="Preparing", step=7, **{**again, "resumeStep": 5, "control": {"preparedAttempt": 2}})
    one.now = NOW + 50
    shown = samples(one.metrics)
    assert shown["echorl_operator_runs", ("Preparing",)] == 1
    assert shown["echorl_operator_restarts_total", ("OutOfMemory", "trainer")] == 1
    assert shown["echorl_operator_checkpoint_age_seconds", ("ns", "one")] == 110
    gpu_seconds = {labels: value for (name, labels), value in shown.items() if name.endswith("gpu_seconds_total")}
    assert gpu_seconds == {
        ("trainer", "starting"): 80 + 80,
        ("trainer", "useful"): 160,
        ("trainer", "restarting"): 80,
    }
    assert shown["echorl_operator_first_step_seconds_sum", ()] == 110
    assert shown["echorl_operator_lost_steps_sum", ()] == 2
    assert shown["echorl_operator_lost_steps_bucket", ("2.0",)] == 1
    assert ("echorl_operator_lost_steps_bucket", ("1.0",)) not in shown


def test_restarts_count_from_zero() -> None:
    shown = generate_latest(Leading().metrics.registry).decode()
    assert 'echorl_operator_restarts_total{cause="OutOfMemory",role="trainer"} 0.0' in shown
    assert 'echorl_operator_restarts_total{cause="ContainerRestarted",role="inference"} 0.0' in shown


def test_failed_runs_are_told_by_reason() -> None:
    one = Leading()
    one.look(0, phase="Failed", attempt=1, control={"failure": "NonFinite"})
    assert samples(one.metrics)["echorl_operator_failed_runs", ("NonFinite",)] == 1
    one.look(10, phase="Running", attempt=1)
    assert not any(name == "echorl_operator_failed_runs" for name, _ in samples(one.metrics))


def test_a_process_that_does_not_lead_shows_no_runs() -> None:
    one = Leading()
    one.look(0, phase="Running", attempt=1)
    one.leads = False
    assert not any("runs" in name or "gpu_seconds" in name for name, _ in samples(one.metrics))


def test_a_run_that_is_gone_is_not_shown() -> None:
    one = Leading()
    one.look(0, phase="Running", attempt=1)
    one.of_runs.forget(RunKey("ns", "one"))
    assert ("echorl_operator_runs", ("Running",)) not in samples(one.metrics)


@pytest.mark.parametrize("candidate", [True, False])
def test_a_process_without_an_election_leads(candidate: bool) -> None:
    metrics = Metrics()
    connection = Connection(in_cluster({}), metrics)
    options = Options(instance="x", lease_namespace="x", lead=candidate)
    tokens = Tokens(b"a master key of tests, long enough")
    Operator(options, Settings(operator_version="0"), tokens, connection, metrics, on_lost=lambda _: None)
    assert metrics.registry.get_sample_value("echorl_operator_leader") == (0 if candidate else 1)
