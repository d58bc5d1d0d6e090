"""Autoscaling in a run's life: what it decides is carried out, told, remembered, and given up for somebody else."""

from dataclasses import replace
from typing import Any

import pytest

from echorl_core.names import Phase
from echorl_operator.names import PodRole
from echorl_operator.observed.measurements import Measurement
from echorl_operator.observed.records import Kind
from echorl_testing.operator.imagined_cluster import ImaginedCluster

BOUNDS = {"min": 1, "max": 4}


def sized(replicas: int = 1, **changes: Any) -> dict[str, Any]:
    return {"replicas": replicas, "gpusPerReplica": 0, "autoscale": BOUNDS, **changes}


def measure(
    cluster: ImaginedCluster, *, waiting: float = 0.0, idle: float = 0.0, minutes: int = 12, engines: int | None = None
) -> None:
    """So many more minutes, a step in each, with so many engines; by default those that have pods."""
    assert cluster.state is not None
    measured = cluster.state.measured
    now = measured[-1] if measured else Measurement(0.0, 0, 0, 0.0, 0.0, 0.0, 0.0)
    serving = num_engines(cluster) if engines is None else engines
    for _ in range(minutes):
        now = Measurement(
            at=now.at + 60,
            step=now.step + 1,
            engines=serving,
            trainer_s=now.trainer_s + 60,
            trainer_waiting_s=now.trainer_waiting_s + 60 * waiting,
            engines_s=now.engines_s + 60 * serving,
            engines_waiting_s=now.engines_waiting_s + 60 * serving * idle,
        )
        measured = (*measured, now)
    cluster.say(measured=measured)
    cluster.settle()


def edit(cluster: ImaginedCluster, inference: dict[str, Any]) -> None:
    cluster.edit(inference=inference)
    cluster.settle()


def num_engines(cluster: ImaginedCluster) -> int:
    return sum(pod.role is PodRole.INFERENCE for pod in cluster.pods.values())


def begun(**inference: Any) -> ImaginedCluster:
    return ImaginedCluster(inference=sized(**inference)).begin()


def why(cluster: ImaginedCluster) -> str:
    said: str = cluster.status["inference"].get("autoscale", "")
    return said


def test_engines_follow_what_is_measured_and_status_and_an_event_say_why() -> None:
    cluster = begun()
    assert why(cluster) == "1 engine, and 1 to 4 as the run is measured"
    measure(cluster, waiting=0.66)
    says = "3 engines in place of 1: with 1 the trainer waited 66% and engines had no requests 0% of 4 min"
    assert (num_engines(cluster), why(cluster)) == (3, says)
    assert cluster.status["roles"]["inference"]["desired"] == 3
    assert [note.message for note in cluster.notes if note.reason == "Autoscaled"] == [says]
    measure(cluster, waiting=0.04, minutes=2)
    assert why(cluster) == says, "until it is measured again"
    measure(cluster, waiting=0.04)
    assert why(cluster) == "3 engines: with 3 the trainer waited 4% and engines had no requests 0% of 4 min"
    measure(cluster, idle=0.7, minutes=30)
    assert num_engines(cluster) == 2
    assert cluster.run.spec["inference"]["replicas"] == 1, "the manifest is the user's"


def test_what_was_decided_outlives_the_operator_an_attempt_and_a_suspension() -> None:
    cluster = begun()
    measure(cluster, waiting=0.66)
    cluster.end("one-trainer-0", 1)
    cluster.settle_after(600)
    assert (cluster.status["attempt"], num_engines(cluster)) == (2, 3)
    cluster.edit(suspend=True)
    cluster.state = None
    cluster.settle_after(1000)
    assert num_engines(cluster) == 0
    cluster.edit(suspend=False)
    cluster.settle()
    assert num_engines(cluster) == 3


@pytest.mark.parametrize("other", [{"attempt": 7}, {"phase": Phase.STARTING}])
def test_what_another_attempt_or_a_start_measured_counts_for_nothing(other: dict[str, Any]) -> None:
    rising = begun()
    measure(rising, waiting=0.66)
    assert (num_engines(rising), rising.state is None) == (3, False)
    cluster = begun()
    assert rising.state is not None
    cluster.state = replace(rising.state, **other)
    cluster.settle()
    assert num_engines(cluster) == 1


@pytest.mark.parametrize("number", [2, 3, 4])
def test_whoever_else_writes_replicas_turns_it_off_until_autoscale_is_changed(number: int) -> None:
    cluster = begun()
    measure(cluster, waiting=0.66)
    edit(cluster, sized(number))
    says = f"off: somebody has set inference.replicas to {number}; it goes on once inference.autoscale is changed, "
    assert (num_engines(cluster), why(cluster)) == (number, says + "or taken out and put back")
    assert [note.message for note in cluster.notes if note.reason == "AutoscalingOff"] == [
        f"somebody has set inference.replicas to {number}, and keeps the number of engines from here on"
    ]
    measure(cluster, waiting=0.9)
    assert (num_engines(cluster), why(cluster)[:4]) == (number, "off:")
    edit(cluster, sized(3))
    assert num_engines(cluster) == 3, "it is theirs from then on"
    edit(cluster, sized(1))
    measure(cluster, waiting=0.66)
    assert num_engines(cluster) == 1, "where it began is no word on autoscaling"
    edit(cluster, sized(1, autoscale={"min": 1, "max": 2}))
    measure(cluster, waiting=0.66)
    assert num_engines(cluster) == 2


def test_taken_out_and_put_back_it_begins_again() -> None:
    cluster = begun()
    edit(cluster, sized(2))
    assert why(cluster).startswith("off: ")
    edit(cluster, sized(2, autoscale=None))
    assert ("autoscale" in cluster.status["inference"], "autoscale" in cluster.status["control"]) == (False, False)
    edit(cluster, sized(2))
    measure(cluster, waiting=0.5)
    assert num_engines(cluster) == 4


def test_an_edit_of_both_is_no_taking_over_and_one_of_the_bounds_keeps_the_number() -> None:
    cluster = begun()
    measure(cluster, waiting=0.66)
    edit(cluster, sized(1, autoscale={"min": 1, "max": 2}))
    assert num_engines(cluster) == 2
    edit(cluster, sized(4, autoscale={"min": 3, "max": 6}))
    assert num_engines(cluster) == 4, "where it begins"
    measure(cluster, waiting=0.5)
    assert num_engines(cluster) == 6


def test_the_decision_is_written_before_it_is_carried_out() -> None:
    rising, cluster = begun(), begun()
    measure(rising, waiting=0.66)
    assert rising.state is not None
    cluster.say(measured=rising.state.measured)
    made = cluster.look()
    assert made.fence
    before = {"beforeEngines": 1, "beforeStepsPerDay": 1440}
    decided = {"wanted": 3, "min": 1, "max": 4, "replicas": 1, "since": 720}
    assert made.status["control"]["autoscale"] == decided | before


def test_a_long_start_makes_it_patient() -> None:
    """Ten minutes of idling are enough for engines that come back fast."""
    cluster = begun(replicas=4)
    measure(cluster, idle=0.7)
    assert num_engines(cluster) == 3
    slow = begun(replicas=4)
    for name, pod in slow.pods.items():
        if pod.role is PodRole.INFERENCE:
            slow.pods[name] = replace(pod, meta=replace(pod.meta, created_at=0.0), ready_since=900.0)
    measure(slow, idle=0.7)
    assert num_engines(slow) == 4
    measure(slow, idle=0.7, minutes=20)
    assert num_engines(slow) == 3


def test_without_autoscale_the_manifest_stands() -> None:
    cluster = begun(autoscale=None)
    measure(cluster, waiting=0.9)
    engines = cluster.world().child(Kind.DEPLOYMENT, "one-inference")
    assert engines is not None
    assert (engines.desired, why(cluster)) == (1, "")


def test_mode_sft_keeps_replicas() -> None:
    """Its engines sample for evals alone."""
    talks = {"name": "talks", "type": "builtin:messages", "args": {"path": "/talks.jsonl"}}
    environments = {"train": [talks], "eval": [{"name": "digits", "type": "builtin:digits"}]}
    cluster = ImaginedCluster(inference=sized(2), algorithm={"mode": "sft"}, environments=environments).begin()
    measure(cluster, waiting=0.9)
    assert (num_engines(cluster), why(cluster)) == (2, "")
