from echorl_core.names import ExitCode, Role
from echorl_operator.names import PodRole
from echorl_operator.plan.deaths import death_of, exit_code, termination_message_of
from echorl_testing.operator.observed_worlds import ended, pod

NAME = "one-trainer-0"


def test_a_process_that_said_why_is_quoted():
    found = ended(NAME, PodRole.TRAINER, int(ExitCode.NON_FINITE), "step 3: the loss is NaN")
    assert (exit_code(found), termination_message_of(found).message) == (3, "step 3: the loss is NaN")
    death = death_of(found)
    assert (death.role, death.exit_code, death.cause) == (Role.TRAINER, 3, f"{NAME}: step 3: the loss is NaN")


def test_signals_memory_and_disruptions_are_told_apart():
    assert death_of(ended(NAME, PodRole.TRAINER, 137)).cause == f"{NAME} was ended by signal 9"
    killed = ended(NAME, PodRole.TRAINER, 137, container={"reason": "OOMKilled"})
    assert "out of memory" in death_of(killed).cause
    drained = ended(NAME, PodRole.TRAINER, 143, disrupted="EvictionByEvictionAPI")
    assert death_of(drained).cause == f"{NAME} was ended: EvictionByEvictionAPI"
    evicted = pod(NAME, PodRole.TRAINER, reason="Evicted", message="the node is low on memory")
    assert death_of(evicted).cause == f"{NAME} was ended: Evicted: the node is low on memory"


def test_a_pod_without_a_word_was_deleted():
    assert death_of(pod(NAME, PodRole.TRAINER)).cause == f"{NAME} was ended: its pod was deleted"


def test_foreign_termination_messages_are_no_words():
    found = ended(NAME, PodRole.TRAINER, 1, container={})
    assert termination_message_of(found) is None
    assert death_of(found).cause == f"{NAME} ended with code 1 (crash)"
