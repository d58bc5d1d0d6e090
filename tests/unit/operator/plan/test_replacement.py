"""Lost pods of a gang with copies at neighbours: others take their place in the same attempt, or a new one begins."""

from dataclasses import replace
from itertools import combinations

import pytest

from echorl_core.names import ExitCode, Role
from echorl_core.termination_message import message_of_end
from echorl_operator.accounting.restarts import Cause
from echorl_operator.plan.actions import Delete, LiftGate
from echorl_operator.plan.gang import digest
from echorl_operator.plan.replacement import is_covered
from echorl_testing.operator.imagined_cluster import ImaginedCluster

LOST = "one-trainer-1"
ORCHESTRATOR = "one-orchestrator"
GAVE_UP = message_of_end("trainer", 1, "rank 0: a peer is gone", attempt=1)


def at_work(*, pods: int = 4, mirror: bool = True, **policy: object) -> ImaginedCluster:
    return ImaginedCluster(
        trainer={"replicas": pods, "gpusPerReplica": 8},
        checkpoint={"memory": {"limit": "1Gi", "mirror": mirror}},
        failurePolicy={"maxRestarts": 1} | policy,
        stallPolicy={"noStepFor": "1h"},
    ).begin()


def uids(cluster: ImaginedCluster) -> dict[str, str]:
    return {name: pod.meta.uid for name, pod in cluster.pods.items() if "trainer" in name}


def lose(cluster: ImaginedCluster, *names: str, code: int = 137) -> None:
    """Killed whole; its StatefulSet puts another pod in its place once it has been seen."""
    for name in names:
        cluster.end(name, code)
    cluster.settle_after(3.0)
    for name in set(names) & set(cluster.pods):
        cluster.remove(name)
    cluster.settle()


def went_on(cluster: ImaginedCluster, replacements: int) -> None:
    cluster.say(step=5, replacements=replacements, restart_reason="others came", last_step_at=cluster.now)
    cluster.settle()


def told(cluster: ImaginedCluster, reason: str) -> list[str]:
    return [note.message for note in cluster.notes if note.reason == reason]


@pytest.mark.parametrize("pods", [2, 3, 5])
def test_neighbours_are_not_covered(pods: int) -> None:
    for count in range(1, pods):
        for lost in combinations(range(pods), count):
            beside = any({a, b} in ({0, pods - 1}, {min(a, b), min(a, b) + 1}) for a, b in combinations(lost, 2))
            assert is_covered(lost, pods) == (not beside), lost


@pytest.mark.parametrize("index", [0, 1])
def test_the_other_pods_stay_and_another_one_takes_the_place_in_the_same_attempt(index: int) -> None:
    cluster = at_work()
    before, lost = uids(cluster), f"one-trainer-{index}"
    cluster.end(lost, 137)
    cluster.settle_after(1.0)
    assert cluster.status["message"].endswith("was ended by signal 9")
    cluster.settle_after(3.0)
    assert list(cluster.status["control"]["replacing"]) == [str(index)]
    assert cluster.status["message"].endswith("is lost; the gang waits for another pod in its place")
    cluster.remove(lost)
    assert cluster.pods[lost].gated
    made = cluster.step()
    assert not [one for one in made.actions if isinstance(one, LiftGate)], "not before status names it"
    assert cluster.status["control"]["admittedPods"] == digest(p for n, p in cluster.pods.items() if n in before)
    cluster.settle()
    after = uids(cluster)
    assert {name for name in before if before[name] != after[name]} == {lost}
    assert not cluster.pods[lost].gated
    assert cluster.status["attempt"] == 1
    assert "takes the place of a lost one" in cluster.status["message"]
    went_on(cluster, 1)
    assert cluster.status["message"] == "training"
    assert cluster.status["restartsByRole"] == {"trainer": 1}
    assert cluster.status["control"]["restartsUsed"] == {"trainer": 1}
    assert "restartsInPlace" not in cluster.status["control"], "counted when it was lost"
    assert told(cluster, "PodReplaced") == ["the gang went on from memory: others came"]
    assert len(told(cluster, "PodLost")) == 1
    assert not [one for one in cluster.deleted if isinstance(one, Delete) and "trainer" in one.name]


def test_two_that_are_no_neighbours_are_lost_together_or_one_after_the_other() -> None:
    cluster = at_work()
    lose(cluster, LOST, "one-trainer-3")
    assert (cluster.status["attempt"], cluster.status["restartsByRole"]) == (1, {"trainer": 1})
    went_on(cluster, 1)
    other = at_work(maxRestarts=2)
    other.end(LOST, 137)
    other.settle_after(3.0)
    other.end("one-trainer-3", 137)
    other.settle_after(3.0)
    assert list(other.status["control"]["replacing"]) == ["1", "3"]
    for name in (LOST, "one-trainer-3"):
        other.remove(name)
    other.settle_after(10.0)
    assert not any(pod.gated for pod in other.pods.values())
    assert (other.status["attempt"], other.status["restartsByRole"]) == (1, {"trainer": 2})


def test_a_pod_that_is_lost_again_and_again_uses_the_restarts_up() -> None:
    cluster = at_work()
    lose(cluster, LOST)
    went_on(cluster, 1)
    lose(cluster, LOST)
    assert (cluster.status["phase"], cluster.condition("Failed")[1]) == ("Failed", "RestartsUsedUp")


def test_notices_are_told_and_use_nothing_up() -> None:
    cluster = at_work(maxRestarts=0)
    for number in range(1, 6):
        cluster.take_away(LOST, "EvictionByEvictionAPI")
        cluster.settle()
        assert cluster.status["control"]["replacing"], "it ends at once, and saves nothing"
        cluster.remove(LOST)
        cluster.settle()
        went_on(cluster, number)
        assert (cluster.status["phase"], cluster.status["attempt"], cluster.status["notices"]) == ("Running", 1, number)
    assert "restartsUsed" not in cluster.status["control"]
    assert cluster.status["restartsByRole"] == {"trainer": 5}


def crashed(cluster: ImaginedCluster) -> None:
    cluster.end(ORCHESTRATOR, 1)


def evicted(cluster: ImaginedCluster) -> None:
    cluster.take_away(ORCHESTRATOR, "EvictionByEvictionAPI")
    cluster.state = None


def evicted_and_ended(cluster: ImaginedCluster) -> None:
    evicted(cluster)
    cluster.end(ORCHESTRATOR, int(ExitCode.NOTICE))


def gone(cluster: ImaginedCluster) -> None:
    cluster.remove(ORCHESTRATOR)
    cluster.state = None


@pytest.mark.parametrize("when", ["before", "together", "while another is waited for"])
@pytest.mark.parametrize("end", [crashed, evicted, evicted_and_ended, gone])
def test_an_orchestrator_that_is_lost_as_well_starts_again_before_the_gang_is_whole(end: object, when: str) -> None:
    cluster = at_work()
    before, first = uids(cluster), cluster.pods[ORCHESTRATOR].meta.uid
    assert callable(end)
    if when != "while another is waited for":
        end(cluster)
    if when == "before":
        cluster.settle_after(1.0)
    cluster.end(LOST, 137)
    cluster.settle_after(3.0)
    if when == "while another is waited for":
        end(cluster)
        cluster.settle_after(3.0)
    if ORCHESTRATOR in cluster.pods and cluster.pods[ORCHESTRATOR].meta.deleted_at is not None:
        cluster.remove(ORCHESTRATOR)
    cluster.settle_after(10.0)
    assert cluster.pods[ORCHESTRATOR].meta.uid != first, "its back-off is over, and the other pod is not there yet"
    assert list(cluster.status["control"]["replacing"]) == ["1"]
    cluster.remove(LOST)
    cluster.settle()
    assert not any(pod.gated for pod in cluster.pods.values())
    assert {name for name, uid in uids(cluster).items() if before[name] != uid} == {LOST}
    cluster.say(step=4)
    went_on(cluster, 1)
    status = cluster.status
    assert (status["attempt"], status["phase"], status["message"]) == (1, "Running", "training")
    assert status["restartsByRole"] == {"trainer": 1} | ({"orchestrator": 1} if end is crashed else {})
    assert status.get("notices", 0) == (end in (evicted, evicted_and_ended))


def test_ends_of_an_orchestrator_that_end_the_run_do_so_beside_a_lost_pod() -> None:
    for code, phase in ((ExitCode.OK, "Succeeded"), (ExitCode.ENVIRONMENT, "Failed")):
        cluster = at_work()
        cluster.end(ORCHESTRATOR, int(code))
        cluster.end(LOST, 137)
        cluster.settle_after(3.0)
        assert cluster.status["phase"] == phase


def test_an_orchestrator_that_is_lost_as_well_again_and_again_uses_its_restarts_up() -> None:
    cluster = at_work(backoffSeconds=0)
    cluster.end(LOST, 137)
    for _ in range(2):
        cluster.settle_after(3.0)
        cluster.end(ORCHESTRATOR, 1)
    cluster.settle_after(3.0)
    assert (cluster.status["phase"], cluster.condition("Failed")[1]) == ("Failed", "RestartsUsedUp")


def lose_again_and_again(cluster: ImaginedCluster, name: str, times: int) -> None:
    """Until its back-off is a long one, without a step that would be a new one."""
    for number in range(1, times + 1):
        cluster.end(name, 137 if name == LOST else 1)
        cluster.settle_after(3.0)
        if name == LOST:
            cluster.remove(LOST)
        cluster.settle_after(300.0)
        cluster.say(step=2, last_step_at=cluster.now, replacements=number if name == LOST else 0)
        cluster.settle()


@pytest.mark.parametrize(("often", "once"), [(LOST, ORCHESTRATOR), (ORCHESTRATOR, LOST)])
def test_the_longer_back_off_of_two_that_are_lost_together_holds(often: str, once: str) -> None:
    cluster = at_work(maxRestarts=9, resetAfterSteps=1000)
    lose_again_and_again(cluster, often, 4)
    cluster.end(often, 137)
    cluster.settle_after(3.0)
    until = cluster.status["control"]["notBefore"]
    cluster.end(once, 1 if once == ORCHESTRATOR else 137)
    cluster.settle_after(3.0)
    cluster.remove(LOST)
    cluster.settle_after(20.0)
    assert cluster.status["control"]["notBefore"] == until
    assert ORCHESTRATOR not in cluster.pods
    assert cluster.pods[LOST].gated
    cluster.settle_after(300.0)
    assert not cluster.pods[LOST].gated
    assert (cluster.status["attempt"], ORCHESTRATOR in cluster.pods) == (1, True)


def test_a_gang_that_does_not_go_on_is_late_whatever_a_new_orchestrator_says_of_its_own_start() -> None:
    cluster = at_work(maxRestarts=9)
    cluster.end(ORCHESTRATOR, 1)
    lose(cluster, LOST)
    cluster.settle_after(20.0)
    cluster.now += 5.0
    cluster.say(step=1)
    cluster.settle_after(30.0)
    assert (cluster.status["attempt"], cluster.status["control"]["replacedAt"] > 0) == (1, True)
    cluster.settle_after(601.0)
    assert cluster.status["attempt"] == 2


def test_before_the_first_step_nothing_is_held_though_nobody_can_say_so() -> None:
    cluster = at_work(maxRestarts=9)
    lose(cluster, LOST, "one-trainer-2")
    cluster.settle_after(60.0)
    cluster.say(step=0)
    cluster.settle()
    assert (cluster.status["attempt"], cluster.status["phase"]) == (2, "Running")
    cluster.end(ORCHESTRATOR, 1)
    cluster.end(LOST, 137)
    cluster.settle_after(3.0)
    assert cluster.status["attempt"] == 3


def test_two_that_hang_on_a_lost_node_are_told_and_then_a_new_attempt_begins() -> None:
    """A silent node may still be at work: what takes a hung orchestrator's place is of another attempt."""
    cluster = at_work()
    for name in (LOST, ORCHESTRATOR):
        cluster.hang(name)
    cluster.state = None
    cluster.settle_after(10.0)
    assert cluster.status["attempt"] == 1
    cluster.settle_after(120.0)
    assert (cluster.status["attempt"], told(cluster, "NodeLost") != []) == (2, True)


def test_each_of_two_that_are_lost_has_its_own_cause() -> None:
    cluster = at_work()
    cluster.end(LOST, 137, reason="OOMKilled")
    cluster.end(ORCHESTRATOR, 1)
    cluster.now += 3.0
    found = [made.restart for made in (cluster.step() for _ in range(4)) if made.restart is not None]
    assert [(one.role, one.cause) for one in found] == [
        (Role.ORCHESTRATOR, Cause.CRASHED),
        (Role.TRAINER, Cause.OUT_OF_MEMORY),
    ]


def neighbours(cluster: ImaginedCluster) -> None:
    lose(cluster, LOST, "one-trainer-2")


def one_and_then_its_neighbour(cluster: ImaginedCluster) -> None:
    cluster.end(LOST, 137)
    cluster.settle_after(3.0)
    lose(cluster, "one-trainer-2")


def by_itself(cluster: ImaginedCluster) -> None:
    cluster.end(LOST, 1, GAVE_UP)
    cluster.settle_after(3.0)


def too_late(cluster: ImaginedCluster) -> None:
    cluster.end(LOST, 137)
    cluster.settle_after(3.0)
    assert cluster.status["attempt"] == 1
    cluster.settle_after(600.0)


def not_taken(cluster: ImaginedCluster) -> None:
    lose(cluster, LOST)
    assert cluster.status["attempt"] == 1
    cluster.settle_after(601.0)


def given_up(cluster: ImaginedCluster) -> None:
    lose(cluster, LOST)
    assert cluster.status["attempt"] == 1
    cluster.end("one-trainer-0", 1, GAVE_UP)
    cluster.settle_after(3.0)


@pytest.mark.parametrize(
    "loss",
    [
        neighbours,
        one_and_then_its_neighbour,
        by_itself,
        too_late,
        not_taken,
        given_up,
    ],
)
def test_what_neighbours_cannot_mend_is_mended_by_a_new_attempt(loss: object) -> None:
    cluster = at_work(maxRestarts=9)
    assert callable(loss)
    loss(cluster)
    assert cluster.status["attempt"] == 2
    assert not {"replacing", "replacedAt", "replacements"} & set(cluster.status["control"])


def test_without_copies_at_neighbours_a_lost_pod_takes_the_gang_along() -> None:
    cluster = at_work(mirror=False)
    lose(cluster, LOST)
    assert cluster.status["attempt"] == 2


def test_a_code_that_is_never_restarted_fails_the_run() -> None:
    cluster = at_work()
    lose(cluster, LOST, code=int(ExitCode.NON_FINITE))
    assert (cluster.status["phase"], cluster.condition("Failed")[1]) == ("Failed", "NonFinite")


def test_a_killed_pod_that_its_controller_deletes_at_once_was_not_taken_away() -> None:
    cluster = at_work(maxRestarts=9)
    cluster.end(LOST, 137)
    cluster.take_away(LOST)
    cluster.settle_after(3.0)
    assert cluster.status["control"]["restartsUsed"] == {"trainer": 1}
    assert "notices" not in cluster.status


def test_a_pod_that_nobody_saw_end_is_a_notice() -> None:
    cluster = at_work(maxRestarts=0)
    cluster.remove(LOST)
    cluster.settle()
    assert (cluster.status["attempt"], cluster.status["notices"]) == (1, 1)
    assert not cluster.pods[LOST].gated


def test_an_operator_that_dies_between_two_passes_goes_on() -> None:
    cluster = at_work()
    cluster.end(LOST, 137)
    cluster.settle_after(3.0)
    cluster.remove(LOST)
    for _ in range(6):
        made = cluster.look()
        # Status alone was written.
        cluster.run = replace(cluster.run, status=made.status)
        assert cluster.status["restartsByRole"] == {"trainer": 1}
        cluster.step()
    assert not cluster.pods[LOST].gated
    assert cluster.status["attempt"] == 1
