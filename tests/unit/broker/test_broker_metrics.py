"""What a broker counts by run, and when it forgets a run."""

from collections import Counter
from dataclasses import replace

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from echorl_broker.metrics import FORGOTTEN_AFTER_S, BrokerMetrics, State
from echorl_core.wire.sandboxes import Why
from echorl_operator.names import PodRole
from echorl_operator.observed.records import PodRecord
from echorl_operator.observed.runs import RunKey
from echorl_testing.operator.observed_worlds import NOW, pod
from tools.operator_metrics_page import broker_declared

ONE, TWO = RunKey("ns", "one"), RunKey("ns", "two")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(metrics: BrokerMetrics) -> dict[str, float]:
    """Every series that is not 0, as Prometheus writes it, without buckets."""
    lines = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    samples = (one for family in lines for one in family.samples if not one.name.endswith(("_created", "_bucket")))
    return {
        f"{one.name.removeprefix('echorl_broker_')} {' '.join(value for _, value in sorted(one.labels.items()))}": (
            one.value
        )
        for one in samples
        if one.value
    }


def ready(uid: str, after_s: float) -> PodRecord:
    record = pod("s", PodRole.TRAINER, ready_since=NOW + after_s)
    return replace(record, meta=replace(record.meta, uid=uid, created_at=NOW))


def test_pods_are_counted_by_run_and_a_ready_one_once() -> None:
    metrics = BrokerMetrics()
    metrics.made(ONE, "p")
    metrics.made(ONE, "p")
    metrics.failed(TWO, "evicted")
    for record in (ready("a", 3), ready("b", 4), ready("a", 3)):
        metrics.ready(ONE, record)
    with metrics.waiting(ONE, Why.QUOTA), metrics.waiting(ONE, Why.QUOTA), metrics.waiting(TWO, Why.NODE):
        assert shown(metrics) == {
            "sandboxes_made_total ns one": 2,
            "sandboxes_failed_total ns evicted two": 1,
            "sandbox_ready_seconds_count ns one": 2,
            "sandbox_ready_seconds_sum ns one": 7,
            "sandboxes_waiting ns quota one": 2,
            "sandboxes_waiting ns node two": 1,
        }
    assert not any("waiting" in name for name in shown(metrics))


def test_a_loss_that_several_find_counts_once_until_the_pod_is_made_anew() -> None:
    metrics = BrokerMetrics()
    for run in (ONE, ONE, TWO):
        metrics.failed(run, "evicted", "p")
    metrics.made(ONE, "p")
    metrics.failed(ONE, "lost", "p")
    metrics.failed(ONE, "lost", "q")
    told = {name: value for name, value in shown(metrics).items() if "failed" in name}
    assert told == {
        "sandboxes_failed_total ns evicted one": 1,
        "sandboxes_failed_total ns evicted two": 1,
        "sandboxes_failed_total ns lost one": 2,
    }


def test_what_pods_there_are_is_as_the_newest_look_of_each_namespace() -> None:
    metrics = BrokerMetrics()
    metrics.looked("ns", Counter({(ONE, State.READY): 3, (TWO, State.WAITING): 1}))
    metrics.looked("other", Counter({(RunKey("other", "one"), State.READY): 1}))
    metrics.looked("ns", Counter({(ONE, State.READY): 2}))
    assert shown(metrics) == {"sandboxes ns one ready": 2, "sandboxes other one ready": 1}


def test_a_run_that_nothing_is_heard_of_has_no_series() -> None:
    clock = Clock()
    metrics = BrokerMetrics(clock)
    for run in (ONE, TWO):
        metrics.made(run, "p")
        metrics.failed(run, "lost")
        metrics.ready(run, ready(run.name, 1))
    clock.now = FORGOTTEN_AFTER_S + 1
    metrics.looked(None, Counter({(TWO, State.READY): 1}))
    assert {name.split()[2 if "failed" not in name else 3] for name in shown(metrics)} == {"two"}
    assert b'run="one"' not in generate_latest(metrics.registry)
    metrics.made(ONE, "p")
    assert shown(metrics)["sandboxes_made_total ns one"] == 1


def test_all_names_are_the_brokers_and_stand_once() -> None:
    names = [one.name for one in broker_declared()]
    assert all(name.startswith("echorl_broker_") for name in names)
    assert len(names) == len(set(names))
