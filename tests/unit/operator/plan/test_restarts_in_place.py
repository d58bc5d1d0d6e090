"""Restarts that a trainer's pod decides on itself are told and counted as those that the operator decides on."""

from echorl_testing.operator.imagined_cluster import ImaginedCluster

REASON = "rank 1 was ended by signal 9"


def at_work(**policy: int) -> ImaginedCluster:
    return ImaginedCluster(failurePolicy=policy).begin()


def restarted(cluster: ImaginedCluster, count: int) -> None:
    cluster.say(step=5, restarts_in_place=count, restart_reason=REASON)
    cluster.settle()
    cluster.settle()


def test_each_is_counted_and_told_once_and_the_attempt_goes_on() -> None:
    cluster = at_work()
    restarted(cluster, 2)
    assert cluster.status["restartsByRole"] == {"trainer": 2}
    assert cluster.status["attempt"] == 1
    told = [note for note in cluster.notes if note.reason == "RestartedInPlace"]
    assert [(note.type, note.message) for note in told] == [
        ("Warning", f"trainer processes went on from memory: {REASON}")
    ]
    restarted(cluster, 0)  # an orchestrator that started again does not know of them
    restarted(cluster, 3)
    assert cluster.status["restartsByRole"] == {"trainer": 3}
    assert cluster.status["control"]["restartsInPlace"] == 3


def test_they_count_against_the_limit_and_anew_in_the_next_attempt() -> None:
    cluster = at_work(maxRestarts=2)
    restarted(cluster, 1)
    cluster.end("one-trainer-0", 1)
    cluster.settle_after(3.0)
    assert (cluster.status["attempt"], cluster.status["restartsByRole"]) == (2, {"trainer": 2})
    assert "restartsInPlace" not in cluster.status["control"]
    other = at_work(maxRestarts=2)
    restarted(other, 2)
    other.end("one-trainer-0", 1)
    other.settle_after(3.0)
    assert (other.status["phase"], other.condition("Failed")[1]) == ("Failed", "RestartsUsedUp")
