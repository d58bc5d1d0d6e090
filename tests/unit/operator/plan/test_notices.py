"""Pods that somebody takes away: told, counted apart, and never why a run fails."""

from dataclasses import replace

import pytest

from echorl_core.names import ExitCode
from echorl_core.termination_message import message_of_end
from echorl_operator.plan.actions import Delete
from echorl_testing.operator.imagined_cluster import ImaginedCluster

RANKS = ("one-trainer-0", "one-trainer-1")
SAVED = message_of_end("trainer", ExitCode.NOTICE, "its gang was given notice: step 7 is saved", attempt=1, step=7)


def at_work(**policy: object) -> ImaginedCluster:
    return ImaginedCluster(failurePolicy={"maxRestarts": 0} | policy, stallPolicy={"noStepFor": "24h"}).begin()


def told(cluster: ImaginedCluster) -> list[str]:
    return [f"{note.type} {note.message}" for note in cluster.notes if note.reason == "Notice"]


def test_a_drained_gang_has_its_time_to_save_and_nothing_is_used_up() -> None:
    cluster = at_work()
    cluster.take_away(RANKS[0], "EvictionByEvictionAPI")
    made = cluster.settle()
    assert cluster.status["attempt"] == 1
    assert cluster.status["message"].startswith("one-trainer-0 was given notice: EvictionByEvictionAPI; its gang saves")
    assert not [one for one in cluster.deleted if one.name in (*RANKS, "one-orchestrator")]
    assert made.wake_after_s is not None
    assert made.wake_after_s <= 120.0
    # Its peer ends first, and the pod is gone before anybody has seen how it ended.
    cluster.end(RANKS[1], ExitCode.NOTICE, SAVED)
    cluster.settle_after(1.0)
    assert cluster.status["attempt"] == 1
    cluster.remove(RANKS[0])
    cluster.settle()
    assert cluster.status["attempt"] == 2, "at once: none is left to say more"
    assert (cluster.status["notices"], "restartsUsed" in cluster.status["control"]) == (1, False)
    assert cluster.status["lastNotice"] == "attempt 1: one-trainer-0 was given notice: EvictionByEvictionAPI"
    assert told(cluster) == [f"Normal {cluster.status['lastNotice']}"]


def test_a_gang_that_ends_by_a_notice_which_only_its_processes_saw_is_counted_too() -> None:
    cluster = at_work()
    for name in RANKS:
        cluster.end(name, ExitCode.NOTICE, SAVED)
    cluster.settle_after(5.0)
    assert (cluster.status["attempt"], cluster.status["notices"]) == (2, 1)
    assert cluster.status["lastNotice"].startswith("attempt 1: one-trainer-0: its gang was given notice: step 7")


@pytest.mark.parametrize("what", ["not ready", "a peer has crashed", "its time is over"])
def test_nothing_is_waited_for_that_cannot_come(what: str) -> None:
    cluster = at_work()
    cluster.take_away(RANKS[0], grace_s=30.0)
    if what == "not ready":
        cluster.hang(RANKS[0])
    elif what == "a peer has crashed":
        cluster.end(RANKS[1], 1)
        cluster.now += 5.0
    else:
        cluster.now += 30.0
    cluster.settle()
    assert (cluster.status["attempt"], cluster.status["notices"]) == (2, 1)
    old = [one for one in cluster.deleted if one.name in {*RANKS, "one-orchestrator"}]
    assert "one-orchestrator" in {one.name for one in old}
    assert all(one.grace_s == 10 for one in old), "nobody of an older attempt waits for longer"


def test_a_fault_in_the_gang_counts_although_a_pod_was_taken_away() -> None:
    cluster = at_work()
    cluster.take_away(RANKS[0], "PreemptionByScheduler")
    cluster.end(RANKS[1], 137, reason="OOMKilled")
    cluster.settle_after(5.0)
    assert cluster.status["phase"] == "Failed"
    assert cluster.condition("Failed")[1] == "RestartsUsedUp"


def test_a_run_outlives_any_number_of_evictions() -> None:
    cluster = at_work()
    for number in range(1, 21):
        name = (RANKS[1], "one-orchestrator")[number % 2]
        cluster.take_away(name, "EvictionByEvictionAPI")
        cluster.settle_after(2.0)
        cluster.remove(name)
        cluster.settle()
        cluster.settle_after(11.0)
        cluster.say(step=1)
        cluster.settle()
        assert (cluster.status["phase"], cluster.status["notices"]) == ("Running", number)
    assert cluster.status["attempt"] == 11
    assert "restartsUsed" not in cluster.status["control"]
    assert len(told(cluster)) == 20
    cluster.take_away("one-inference-0", "EvictionByEvictionAPI")
    cluster.settle_after(1.0)
    cluster.settle_after(1.0)
    assert (cluster.status["phase"], cluster.status["notices"]) == ("Running", 21)
    assert cluster.status["lastNotice"].endswith("one-inference-0 was given notice: EvictionByEvictionAPI")


def test_an_orchestrator_that_is_taken_away_is_made_anew_without_a_back_off() -> None:
    cluster = at_work()
    cluster.take_away("one-orchestrator", "DeletionByTaintManager")
    cluster.settle()
    cluster.end("one-orchestrator", ExitCode.NOTICE)
    cluster.settle()
    cluster.remove("one-orchestrator")
    cluster.settle()
    assert "one-orchestrator" in cluster.pods
    assert (cluster.status["attempt"], cluster.status["notices"]) == (1, 1)
    assert "restartsByRole" not in cluster.status


def test_an_evicted_prepare_is_tried_again_however_often() -> None:
    cluster = ImaginedCluster(failurePolicy={"maxRestarts": 0})
    cluster.prepare = message_of_end("prepare", 143, "terminated", attempt=1)
    seen = set()
    for _ in range(5):
        while "one-prepare-1" not in cluster.pods or cluster.pods["one-prepare-1"].meta.uid in seen:
            cluster.now += 10.0
            cluster.step()
        pod = cluster.pods["one-prepare-1"]
        seen.add(pod.meta.uid)
        cluster.pods["one-prepare-1"] = replace(pod, disrupted="TerminationByKubelet")
        cluster.settle()
    assert cluster.status["phase"] == "Preparing"
    assert "failedPreparations" not in cluster.status["control"]


def test_the_operators_own_deletions_are_no_notices() -> None:
    cluster = at_work(maxRestarts=5)
    cluster.end("one-orchestrator", 1)
    cluster.settle_after(5.0)
    cluster.settle_after(60.0)
    cluster.end(RANKS[0], 1)
    cluster.settle_after(5.0)
    assert any(isinstance(one, Delete) and one.name == RANKS[1] for one in cluster.deleted)
    cluster.settle_after(60.0)
    assert cluster.status["attempt"] == 2
    assert "notices" not in cluster.status
