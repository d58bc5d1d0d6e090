"""``failurePolicy.rules``: what exit codes of each role mean."""

from typing import Any

import pytest

from echorl_core.termination_message import message_of_end
from echorl_testing.operator.imagined_cluster import ImaginedCluster

TRAINER, ENGINE, ORCHESTRATOR = "one-trainer-0", "one-inference-0", "one-orchestrator"


def rule(role: str, codes: list[int], action: str) -> dict[str, Any]:
    return {"role": role, "exitCodes": codes, "action": action}


def at_work(*rules: dict[str, Any], restarts: int = 5) -> ImaginedCluster:
    policy = {"rules": list(rules), "maxRestarts": restarts, "backoffSeconds": 0}
    return ImaginedCluster(failurePolicy=policy).begin()


def ends(cluster: ImaginedCluster, name: str, code: int, **how: Any) -> None:
    if name == ENGINE:
        cluster.end_in_place(name, code)
    else:
        cluster.end(name, code, **how)
    cluster.settle_after(3.0)


def failed(cluster: ImaginedCluster) -> tuple[str, str]:
    """Reason and message; empty if the run goes on."""
    status, reason, message = cluster.condition("Failed")
    assert (cluster.status["phase"] == "Failed") is (status == "True")
    return (reason, message) if status == "True" else ("", "")


@pytest.mark.parametrize("name", [TRAINER, ENGINE, ORCHESTRATOR])
def test_fail_fails_at_once_with_a_reason_of_its_own(name: str) -> None:
    cluster = at_work(rule(name.split("-")[1], [17, 1], "Fail"))
    ends(cluster, name, 1)
    reason, message = failed(cluster)
    assert reason == "FailedByRule"
    assert f"{name} ended with code 1 (crash); a rule of failurePolicy.rules fails the run" in message
    assert "restartsByRole" not in cluster.status


def test_a_code_with_a_reason_keeps_it() -> None:
    cluster = at_work(rule("trainer", [3], "Fail"))
    ends(cluster, TRAINER, 3)
    assert failed(cluster)[0] == "NonFinite"


@pytest.mark.parametrize(("name", "code"), [(TRAINER, 3), (ENGINE, 2), (ORCHESTRATOR, 4)])
def test_restart_restarts_what_otherwise_fails(name: str, code: int) -> None:
    strict = at_work()
    ends(strict, name, code)
    assert failed(strict)[0] in ("NonFinite", "InvalidInput", "EnvironmentFailed")
    mild = at_work(rule(name.split("-")[1], [code], "Restart"), restarts=1)
    ends(mild, name, code)
    assert failed(mild) == ("", "")
    assert mild.status["attempt"] == (2 if name == TRAINER else 1)
    if name != ENGINE:
        assert mild.status["control"]["restartsUsed"] == {name.split("-")[1]: 1}
        mild.say(step=1)
        mild.settle()
        ends(mild, name, code)
        assert failed(mild)[0] == "RestartsUsedUp"


@pytest.mark.parametrize("name", [TRAINER, ORCHESTRATOR])
def test_ignore_restarts_without_counting(name: str) -> None:
    role = name.split("-")[1]
    cluster = at_work(rule(role, [1], "Ignore"), restarts=0)
    for number in (1, 2, 3):
        ends(cluster, name, 1)
        assert failed(cluster) == ("", "")
        assert cluster.status["restartsByRole"] == {role: number}
        assert "restartsUsed" not in cluster.status["control"]
        cluster.say(step=1)
        cluster.settle()
    ends(cluster, name, 17)
    assert failed(cluster)[0] == "RestartsUsedUp"


def test_the_first_rule_that_matches_decides_and_others_roles_do_not() -> None:
    cluster = at_work(rule("orchestrator", [3], "Fail"), rule("trainer", [3], "Restart"), rule("trainer", [3], "Fail"))
    ends(cluster, TRAINER, 3)
    assert cluster.status["attempt"] == 2


def test_out_of_memory_is_code_137() -> None:
    cluster = at_work(rule("trainer", [137], "Fail"))
    ends(cluster, TRAINER, 137, reason="OOMKilled")
    reason, message = failed(cluster)
    assert reason == "FailedByRule"
    assert "out of memory" in message


def test_what_the_orchestrator_says_before_it_ends_goes_by_the_rules_too() -> None:
    plain = at_work()
    plain.say(failure_code=4, failure_message="64 episodes failed")
    plain.settle()
    assert failed(plain) == ("EnvironmentFailed", "orchestrator: 64 episodes failed")
    ruled = at_work(rule("orchestrator", [4], "Restart"))
    ruled.say(failure_code=4, failure_message="64 episodes failed")
    ruled.settle()
    assert failed(ruled) == ("", "")
    ends(ruled, ORCHESTRATOR, 4)
    assert failed(ruled) == ("", "")
    assert ruled.status["restartsByRole"] == {"orchestrator": 1}


def test_a_failure_that_is_restarted_is_no_end_of_the_run() -> None:
    cluster = at_work()
    cluster.say(failure_code=1, failure_message="the last checkpoint was not committed")
    cluster.settle()
    assert failed(cluster) == ("", "")
    ends(cluster, ORCHESTRATOR, 1)
    assert cluster.status["restartsByRole"] == {"orchestrator": 1}


@pytest.mark.parametrize("action", ["Fail", "Restart"])
def test_a_stop_past_the_operator_goes_by_the_rules(action: str) -> None:
    cluster = at_work(rule("orchestrator", [7], action))
    ends(cluster, ORCHESTRATOR, 7)
    assert failed(cluster)[0] == ("FailedByRule" if action == "Fail" else "")
    assert cluster.status["attempt"] == 1


# Engines.


@pytest.mark.parametrize("again", [False, True])
def test_bad_input_of_an_engine_is_seen_after_its_container_is_gone(again: bool) -> None:
    cluster = at_work()
    said = message_of_end("inference", 2, "no such option --fast", attempt=1)
    cluster.end_in_place(ENGINE, 2, said, again=again)
    cluster.settle()
    assert failed(cluster) == ("InvalidInput", f"inference: {ENGINE}: no such option --fast")


def test_restarts_of_engines_never_use_up_anything() -> None:
    cluster = at_work(restarts=0)
    for _ in range(9):
        cluster.end_in_place(ENGINE, 1)
        cluster.settle_after(30.0)
        cluster.end_in_place(ENGINE, 137, again=True)
        cluster.settle_after(30.0)
    assert failed(cluster) == ("", "")
    assert cluster.status["attempt"] == 1
    assert cluster.status["restartsByRole"] == {"inference": 18}


def test_an_end_is_judged_once() -> None:
    cluster = at_work()
    cluster.end_in_place(ENGINE, 1, again=True)
    cluster.settle()
    cluster.edit(failurePolicy={"rules": [rule("inference", [1], "Fail")]})
    cluster.settle()
    assert failed(cluster) == ("", "")
    cluster.end_in_place(ENGINE, 1)
    cluster.settle()
    assert failed(cluster)[0] == "FailedByRule"


def test_a_run_that_goes_on_meets_none_of_its_old_ends() -> None:
    cluster = at_work()
    cluster.end_in_place(ENGINE, 2)
    cluster.settle()
    assert failed(cluster)[0] == "InvalidInput"
    cluster.edit(inference={"replicas": 1, "gpusPerReplica": 0, "extraArgs": ["--seed", "3"]})
    cluster.settle()
    cluster.say(step=1)
    cluster.settle()
    assert cluster.status["phase"] == "Running"


def test_ends_of_an_older_template_are_nothing_to_the_new_one() -> None:
    """Of an edit that mends what engines were given: the old ones end as they did before."""
    cluster = at_work(rule("inference", [2], "Ignore"))
    cluster.end_in_place(ENGINE, 2)
    cluster.settle()
    old = cluster.pods[ENGINE]
    cluster.edit(failurePolicy={}, inference={"replicas": 1, "gpusPerReplica": 0, "extraArgs": ["--seed", "3"]})
    cluster.rolls_out = False
    cluster.settle()
    cluster.pods[ENGINE] = old
    cluster.end_in_place(ENGINE, 2)
    cluster.settle()
    assert failed(cluster) == ("", "")
