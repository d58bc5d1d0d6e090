"""An orchestrator that the end of a run comes from is left to end by itself: its log and last words are kept."""

from dataclasses import replace

import pytest

from echorl_core.names import ExitCode, Phase
from echorl_core.termination_message import message_of_end
from echorl_operator.plan.endings import LAST_WORDS_S
from echorl_testing.operator.imagined_cluster import ImaginedCluster

TRAINERS = ("one-trainer-0", "one-trainer-1")


def finished() -> ImaginedCluster:
    """All steps are done by the orchestrator's word, and its process is still there."""
    cluster = ImaginedCluster().begin()
    cluster.say(phase=Phase.SUCCEEDED, step=20)
    cluster.settle()
    assert cluster.status["phase"] == "Succeeded"
    return cluster


def test_a_successful_orchestrator_ends_by_itself_and_its_pod_stays() -> None:
    cluster = finished()
    assert set(cluster.pods) == {"one-orchestrator", "one-prepare-1"}
    words = message_of_end("orchestrator", ExitCode.OK, "finished", attempt=1, step=20)
    cluster.end("one-orchestrator", 0, words)
    cluster.settle_after(10 * LAST_WORDS_S)
    assert "one-orchestrator" in cluster.pods
    assert cluster.status["step"] == 20


def test_one_that_does_not_end_is_ended_when_its_time_is_over() -> None:
    cluster = finished()
    made = cluster.settle()
    assert made.wake_after_s == LAST_WORDS_S
    cluster.settle_after(LAST_WORDS_S - 1.0)
    assert "one-orchestrator" in cluster.pods
    cluster.settle_after(1.0)
    assert "one-orchestrator" not in cluster.pods


def test_the_next_operator_waits_as_well() -> None:
    """It may look before the orchestrator has answered it."""
    cluster = finished()
    cluster.state = None
    cluster.settle()
    assert "one-orchestrator" in cluster.pods


def test_an_orchestrator_that_tells_of_a_failure_ends_by_itself() -> None:
    cluster = ImaginedCluster().begin()
    cluster.say(failure_code=int(ExitCode.NON_FINITE), failure_message="the loss is nan")
    cluster.settle()
    assert cluster.status["phase"] == "Failed"
    assert "one-orchestrator" in cluster.pods


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_phase_that_somebody_wrote_by_hand_ends_no_run(phase: str) -> None:
    cluster = ImaginedCluster().begin()
    cluster.run = replace(cluster.run, status={**cluster.status, "phase": phase})
    cluster.settle()
    assert (cluster.status["phase"], cluster.status["attempt"]) == ("Running", 1)
    assert set(cluster.pods) == {"one-orchestrator", "one-prepare-1", "one-inference-0", *TRAINERS}


def test_one_that_is_at_work_when_the_run_fails_of_something_else_is_ended() -> None:
    cluster = ImaginedCluster(activeDeadlineSeconds=600).begin()
    cluster.settle_after(600.0)
    assert cluster.status["phase"] == "Failed"
    assert "one-orchestrator" not in cluster.pods
