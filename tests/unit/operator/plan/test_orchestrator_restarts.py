"""The orchestrator is started again alone, after a back-off that doubles."""

from typing import Any

from echorl_operator.observed.times import from_text
from echorl_testing.operator.imagined_cluster import ImaginedCluster

NAME = "one-orchestrator"


def at_work(**policy: Any) -> ImaginedCluster:
    return ImaginedCluster(failurePolicy=policy).begin()


def crash(cluster: ImaginedCluster) -> None:
    """The orchestrator ends, and its end is seen to."""
    cluster.end(NAME, 1)
    cluster.settle_after(3.0)


def started(cluster: ImaginedCluster) -> list[float]:
    return [at for name, at in cluster.created if name == NAME]


def test_it_waits_twice_as_long_each_time() -> None:
    cluster, waits = at_work(), list[float]()
    for _ in range(5):
        crash(cluster)
        seen_at = cluster.now
        while len(started(cluster)) < len(waits) + 2:
            wake = cluster.settle().wake_after_s
            assert wake is not None
            assert wake > 0
            cluster.now += wake
            cluster.settle()
        waits.append(started(cluster)[-1] - seen_at)
        cluster.say(step=1)
        cluster.settle()
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0]
    assert cluster.status["attempt"] == 1
    assert cluster.status["restartsByRole"] == {"orchestrator": 5}
    crash(cluster)
    assert cluster.status["phase"] == "Failed"
    assert cluster.condition("Failed")[1] == "RestartsUsedUp"


def test_status_says_that_it_waits_and_until_when() -> None:
    cluster = at_work(backoffSeconds=40)
    crash(cluster)
    until = cluster.now + 40.0
    assert NAME not in cluster.pods
    assert cluster.status["phase"] == "Running"
    assert from_text(cluster.status["control"]["notBefore"]) == until
    said = "one-orchestrator ended with code 1 (crash)"
    assert any(note.reason == "OrchestratorRestarted" and said in note.message for note in cluster.notes)
    message = cluster.status["message"]
    assert message == f"the orchestrator starts again at {cluster.status['control']['notBefore']} (back-off)"
    made = cluster.settle_after(39.0)
    assert NAME not in cluster.pods
    assert made.wake_after_s == 1.0
    assert cluster.status["message"] == message
    cluster.settle_after(1.0)
    assert NAME in cluster.pods
    assert "back-off" not in cluster.status["message"]


def test_another_operator_goes_on_waiting() -> None:
    cluster = at_work(backoffSeconds=40)
    cluster.end(NAME, 1)
    cluster.now += 3.0
    made = cluster.look()
    assert made.fence
    assert from_text(made.status["control"]["notBefore"]) == cluster.now + 40.0


def test_without_back_off_it_starts_at_once() -> None:
    cluster = at_work(backoffSeconds=0)
    crash(cluster)
    assert started(cluster)[-1] == cluster.now


def test_a_gang_that_dies_meanwhile_waits_for_its_own_time() -> None:
    cluster = at_work(backoffSeconds=40)
    crash(cluster)
    cluster.now += 35.0
    cluster.end("one-trainer-0", 1)
    cluster.settle_after(3.0)
    assert cluster.status["attempt"] == 2
    assert from_text(cluster.status["control"]["notBefore"]) == cluster.now + 40.0
    cluster.settle_after(39.0)
    assert NAME not in cluster.pods
    cluster.settle_after(1.0)
    assert NAME in cluster.pods
