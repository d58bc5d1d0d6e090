"""An engine whose node is lost: its gang goes on, and somebody is told, or it is removed."""

from typing import Any

from echorl_testing.operator.imagined_cluster import ImaginedCluster

ENGINE = "one-inference-0"


def hung(**policy: Any) -> ImaginedCluster:
    cluster = ImaginedCluster(failurePolicy=policy, stallPolicy={"noStepFor": "24h"}).begin()
    cluster.hang(ENGINE)
    made = cluster.settle()
    assert cluster.condition("NodeLost") == ("", "", "")
    assert made.wake_after_s is not None
    cluster.settle_after(30.0 + 61.0)
    return cluster


def goes_on(cluster: ImaginedCluster) -> None:
    assert (cluster.status["phase"], cluster.status["attempt"]) == ("Running", 1)
    assert cluster.status["message"] == "training"
    assert cluster.condition("Progressing")[0] == "True"
    assert {"one-orchestrator", "one-trainer-0", "one-trainer-1"} <= set(cluster.pods)
    assert not any(one.name != ENGINE and one.kind == "Pod" and "prepare" not in one.name for one in cluster.deleted)


def test_it_is_told_once_and_left_alone() -> None:
    cluster = hung()
    goes_on(cluster)
    status, reason, message = cluster.condition("NodeLost")
    assert (status, reason) == ("True", "PodsHang")
    assert f"{ENGINE} does not end on node-1" in message
    assert "forceDeleteOnNodeLoss" in message
    cluster.say(step=2)
    cluster.settle_after(60.0)
    told = [note for note in cluster.notes if note.message.startswith("PodsHang: ")]
    assert [(note.type, ENGINE in note.message) for note in told] == [("Warning", True)]
    assert ENGINE in cluster.pods


def test_the_condition_heals_when_the_node_is_back() -> None:
    cluster = hung()
    del cluster.pods[ENGINE]
    cluster.settle()
    assert cluster.condition("NodeLost")[:2] == ("False", "Healed")
    goes_on(cluster)


def test_it_is_removed_by_force_where_the_manifest_says_so() -> None:
    cluster = hung(forceDeleteOnNodeLoss=True)
    goes_on(cluster)
    assert [(one.name, one.grace_s) for one in cluster.deleted if one.name == ENGINE] == [(ENGINE, 0)]
    assert cluster.pods[ENGINE].meta.deleted_at is None, "another one is in its place"
    assert cluster.condition("NodeLost")[:2] == ("False", "Healed")
    told = [note for note in cluster.notes if note.message.startswith("ForceDeleted: ")]
    assert [(note.type, ENGINE in note.message) for note in told] == [("Warning", True)]


def test_nothing_is_done_before_its_time() -> None:
    cluster = ImaginedCluster(failurePolicy={"forceDeleteOnNodeLoss": True}).begin()
    cluster.hang(ENGINE)
    cluster.settle_after(30.0 + 59.0)
    assert not [one for one in cluster.deleted if one.name == ENGINE]


def test_the_gang_that_hangs_is_not_removed_with_it() -> None:
    """Trainer pods that hang are the business of the attempt that follows them."""
    cluster = ImaginedCluster(failurePolicy={"backoffSeconds": 0}).begin()
    cluster.hang("one-trainer-0")
    cluster.settle_after(1.0)
    assert cluster.status["attempt"] == 2
    cluster.settle_after(100.0)
    assert cluster.condition("NodeLost")[:2] == ("True", "PodsHang")
    assert cluster.condition("Progressing")[0] == "False"
    assert "one-trainer-0" in cluster.pods
