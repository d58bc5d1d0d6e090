"""What a run comes to when time passes, when prepare fails, or when somebody takes its rendering away."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from echorl_core.names import Phase
from echorl_core.termination_message import SkippedCheckpoint, TerminationMessage, message_of_end
from echorl_operator.observed.records import Kind, PodPhase
from echorl_operator.observed.times import to_text
from echorl_operator.plan.actions import AskToStop, Note
from echorl_testing.operator.imagined_cluster import ImaginedCluster
from echorl_testing.operator.scripted_cluster import prepared

HALF_AN_HOUR_S = 1800.0


def noted(cluster: ImaginedCluster, reason: str) -> list[Note]:
    return [note for note in cluster.notes if note.reason == reason]


# No step.


def stalled(**policy: Any) -> ImaginedCluster:
    cluster = ImaginedCluster(stallPolicy={"noStepFor": "30m", **policy}, failurePolicy={"backoffSeconds": 40}).begin()
    cluster.say(waiting_for="episodes")
    made = cluster.settle_after(HALF_AN_HOUR_S - 1.0)
    assert made.wake_after_s == 1.0
    assert cluster.condition("Stalled") == ("", "", "")
    cluster.settle_after(1.0)
    return cluster


SAID = "no step for 1800 s (stallPolicy.noStepFor is 30m); it waits for episodes"


def test_a_stall_is_a_new_attempt() -> None:
    cluster = stalled()
    assert cluster.status["attempt"] == 2
    assert cluster.status["control"]["restartsUsed"] == {"trainer": 1}
    assert cluster.status["control"]["notBefore"] == to_text(cluster.now + 40.0)
    assert SAID in noted(cluster, "GangRestarted")[0].message


def test_a_stall_fails_the_run_where_it_shall() -> None:
    cluster = stalled(action="Fail")
    assert cluster.status["phase"] == "Failed"
    assert cluster.condition("Failed") == ("True", "Stalled", SAID)
    assert "one-orchestrator" not in cluster.pods


def test_a_stall_is_told_alone_where_it_shall_be_ignored_and_heals() -> None:
    cluster = stalled(action="Ignore")
    assert (cluster.status["phase"], cluster.status["attempt"]) == ("Running", 1)
    assert cluster.condition("Stalled") == ("True", "NoStep", SAID)
    cluster.settle_after(HALF_AN_HOUR_S)
    assert cluster.status["phase"] == "Running"
    assert not [one.name for one in cluster.deleted if one.kind == "Pod" and "prepare" not in one.name]
    cluster.say(step=2, last_step_at=cluster.now)
    cluster.settle()
    assert cluster.condition("Stalled")[:2] == ("False", "Healed")


def test_stalls_use_up_restarts() -> None:
    cluster = ImaginedCluster(stallPolicy={"noStepFor": "30m"}, failurePolicy={"maxRestarts": 0}).begin()
    cluster.settle_after(HALF_AN_HOUR_S)
    assert cluster.condition("Failed")[1] == "Stalled"
    assert "0 restarts of trainer are used up" in cluster.condition("Failed")[2]


# Prepare.


def crashed(message: str = "the hub cannot be reached", code: int = 1) -> TerminationMessage:
    return message_of_end("prepare", code, message, attempt=1)


def prepares(cluster: ImaginedCluster) -> list[float]:
    return [at - cluster.created[0][1] for name, at in cluster.created if "prepare" in name]


def test_prepare_is_tried_again_ever_more_rarely() -> None:
    cluster = ImaginedCluster(failurePolicy={"maxRestarts": 3, "backoffSeconds": 10})
    cluster.prepare = crashed()
    made = cluster.settle()
    assert cluster.status["phase"] == "Preparing"
    while cluster.status["phase"] != "Failed":
        assert made.wake_after_s is not None
        made = cluster.settle_after(made.wake_after_s)
    assert prepares(cluster) == [0.0, 10.0, 30.0, 70.0]
    told = [note.message for note in noted(cluster, "PrepareFailed")]
    assert told == ["the hub cannot be reached"] * 3 + ["the hub cannot be reached; prepare failed 4 times"]
    assert cluster.condition("Failed")[1:] == ("PrepareFailed", told[-1])
    assert cluster.status["attempt"] == 1
    assert "restartsByRole" not in cluster.status
    assert not [name for name, _ in cluster.created if "prepare" not in name and "trainer" not in name]


def test_the_message_says_when_prepare_is_tried_again() -> None:
    cluster = ImaginedCluster(failurePolicy={"backoffSeconds": 40})
    cluster.prepare = crashed()
    while not noted(cluster, "PrepareFailed"):
        made = cluster.step()
    assert made.status["message"] == "the hub cannot be reached; next try in 40 s"
    cluster.settle()
    assert cluster.status["message"] == "attempt 1 begins in 40 s"


def test_a_prepare_that_succeeds_at_last_forgets_its_failures() -> None:
    cluster = ImaginedCluster(failurePolicy={"backoffSeconds": 10})
    cluster.prepare = crashed()
    cluster.settle()
    assert cluster.status["control"]["failedPreparations"] == 1
    cluster.prepare = prepared(1)
    cluster.settle_after(10.0)
    assert "failedPreparations" not in cluster.status["control"]
    assert cluster.status["control"]["preparedAttempt"] == 1


def test_bad_input_of_prepare_is_not_tried_again() -> None:
    cluster = ImaginedCluster()
    cluster.prepare = crashed("spec.model.name: no config.json", 2)
    cluster.settle()
    assert cluster.condition("Failed") == ("True", "InvalidInput", "spec.model.name: no config.json")
    assert len(prepares(cluster)) == 1


@pytest.mark.parametrize(
    ("reason", "code", "message", "told"),
    [
        ("Error", 137, "", "one-prepare-1 was ended by signal 9"),
        ("OOMKilled", 137, "", "one-prepare-1: out of memory (the container's limit or the node's)"),
        ("Error", 1, "", "one-prepare-1 ended with code 1 (crash)"),
        ("StartError", 128, "exec: no such file", "one-prepare-1: StartError: exec: no such file"),
    ],
)
def test_a_prepare_that_ends_without_a_word_is_tried_again(reason: str, code: int, message: str, told: str) -> None:
    cluster = ImaginedCluster(failurePolicy={"backoffSeconds": 10})
    cluster.prepare = crashed()
    while not (ended := [name for name in cluster.pods if "prepare" in name]):
        cluster.step()
    (over,) = cluster.pods[ended[0]].containers
    over = replace(over, reason=reason, exit_code=code, message=message)
    cluster.pods[ended[0]] = replace(cluster.pods[ended[0]], containers=(over,))
    cluster.settle()
    assert noted(cluster, "PrepareFailed")[0].message == told
    cluster.prepare = prepared(1)
    cluster.settle_after(10.0)
    assert cluster.status["control"]["preparedAttempt"] == 1


def test_a_prepare_that_was_evicted_is_tried_again() -> None:
    cluster = ImaginedCluster(failurePolicy={"backoffSeconds": 10})
    while not (ended := [name for name in cluster.pods if "prepare" in name]):
        cluster.step()
    evicted = replace(cluster.pods[ended[0]], phase=PodPhase.FAILED, reason="Evicted", message="low on memory")
    cluster.pods[ended[0]] = replace(evicted, containers=())
    cluster.settle()
    assert noted(cluster, "PrepareFailed")[0].message == "one-prepare-1 was ended: Evicted: low on memory"


def test_each_checkpoint_that_was_passed_over_is_told() -> None:
    cluster = ImaginedCluster()
    words = prepared(1, resume_step=25)
    assert words.prepared is not None
    skipped = [
        SkippedCheckpoint(step=75, reason="of an older attempt"),
        SkippedCheckpoint(step=50, reason="rank_0.bin: missing", damaged=True),
    ]
    cluster.prepare = msgspec.structs.replace(words, prepared=msgspec.structs.replace(words.prepared, skipped=skipped))
    cluster.settle()
    told = [(note.type, note.message) for note in noted(cluster, "CheckpointSkipped")]
    assert told == [
        ("Warning", "checkpoint 75: of an older attempt"),
        ("Warning", "checkpoint 50: rank_0.bin: missing"),
    ]


# Suspending.


def test_a_run_that_does_not_save_is_ended_after_a_quarter_of_an_hour() -> None:
    cluster = ImaginedCluster().begin()
    cluster.edit(suspend=True)
    cluster.settle()
    begun, gang = cluster.now, {"one-trainer-0", "one-trainer-1", "one-orchestrator"}
    while cluster.now < begun + 900.0:
        cluster.now += 10.0
        made = cluster.settle()
        assert any(isinstance(action, AskToStop) for action in made.actions)
        assert made.wake_after_s == 10.0
        assert gang <= set(cluster.pods)
    assert not noted(cluster, "NotSaved")
    cluster.settle_after(1.0)
    assert cluster.status["phase"] == "Suspended"
    assert not cluster.pods
    (told,) = noted(cluster, "NotSaved")
    assert (told.type, told.message) == ("Warning", "no checkpoint within 900 s; ending the pods")


# The rendering is gone.


def take_away_the_rendering(cluster: ImaginedCluster) -> None:
    del cluster.children[Kind.REVISION, cluster.status["revision"]]


def test_a_lost_rendering_of_this_manifest_is_made_anew() -> None:
    cluster = ImaginedCluster().begin()
    take_away_the_rendering(cluster)
    cluster.settle()
    assert (cluster.status["phase"], cluster.status["attempt"]) == ("Running", 1)
    assert (Kind.REVISION, cluster.status["revision"]) in cluster.children


@pytest.mark.parametrize("maximum", [500, 600])
def test_a_lost_rendering_of_another_manifest_is_a_new_attempt(maximum: int) -> None:
    """Even if what changed needs none: nobody knows any more what it was."""
    cluster = ImaginedCluster(maxSteps=500).begin()
    take_away_the_rendering(cluster)
    cluster.edit(maxSteps=maximum)
    cluster.settle()
    assert cluster.status["attempt"] == 2
    assert cluster.status["timeline"][-3]["reason"] == "RevisionLost"
    (told,) = noted(cluster, "RevisionLost")
    assert told.type == "Warning"
    assert "how the attempt was rendered is lost, and the manifest has changed since" in told.message
    cluster.say(step=1, phase=Phase.RUNNING)
    cluster.settle()
    assert cluster.status["phase"] == "Running"
