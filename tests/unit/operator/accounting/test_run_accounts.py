"""Restarts, steps, phases and checkpoints, counted on lives that are worked out by hand."""

from dataclasses import replace

import pytest

from echorl_core.names import Phase
from echorl_operator.accounting.restarts import Cause, Restart
from echorl_operator.accounting.runs import NOTHING, RunAccounts
from echorl_operator.observed.runs import RunKey
from echorl_operator.observed.times import to_text
from echorl_operator.observed.world import Observed
from echorl_testing.operator.accounted_run import GPU, KEY, LOST, PREPARED, at, entry, gang, orchestrator, seconds
from echorl_testing.operator.observed_worlds import NOW, run


def test_restarts_are_counted_once_status_shows_them() -> None:
    accounts = RunAccounts(GPU)
    running = {**PREPARED, "attempt": 1}
    accounts.observe(at(0, "Running", **running))
    accounts.planned(KEY, LOST)
    # The write failed; the next pass decides again.
    assert accounts.observe(at(1, "Running", **running)) == NOTHING
    accounts.planned(KEY, Restart("trainer", Cause.OUT_OF_MEMORY))
    again = {"attempt": 2, "restartsByRole": {"trainer": 1}, "control": {"preparedAttempt": 1}}
    found = accounts.observe(at(2, "Restarting", **again))
    assert found.restarts == (Restart("trainer", Cause.OUT_OF_MEMORY),)
    assert accounts.observe(at(3, "Restarting", **again)) == NOTHING
    # What was planned once counts once, whatever follows.
    assert accounts.observe(at(4, "Preparing", **{**again, "attempt": 3})) == NOTHING


def test_an_edit_counts_and_a_beginning_does_not() -> None:
    accounts = RunAccounts(GPU)
    accounts.observe(at(0, "Running", **PREPARED))
    accounts.planned(KEY, Restart("trainer", Cause.EDITED))
    assert accounts.observe(at(1, "Restarting", attempt=2)).restarts == (Restart("trainer", Cause.EDITED),)
    accounts.planned(KEY, None)
    assert accounts.observe(at(2, "Suspended", attempt=2)).restarts == ()
    assert accounts.observe(at(3, "Preparing", attempt=3)).restarts == ()


def test_another_try_of_prepare_counts() -> None:
    accounts = RunAccounts(GPU)
    accounts.observe(at(0, "Preparing"))
    accounts.planned(KEY, Restart("prepare", Cause.CRASHED))
    found = accounts.observe(at(1, "Preparing", control={"failedPreparations": 1}))
    assert found.restarts == (Restart("prepare", Cause.CRASHED),)


def test_a_restart_that_another_process_decided_is_of_unknown_cause() -> None:
    accounts = RunAccounts(GPU)
    accounts.observe(at(0, "Running", **PREPARED))
    found = accounts.observe(at(1, "Running", restartsByRole={"orchestrator": 1}, **PREPARED))
    assert found.restarts == (Restart("orchestrator", Cause.UNKNOWN),)


def test_engines_that_their_kubelets_start_again() -> None:
    def counted(at_s: float, times: int) -> Observed:
        return at(at_s, "Running", restartsByRole={"inference": times}, **PREPARED)

    accounts = RunAccounts(GPU)
    assert accounts.observe(counted(0, 3)) == NOTHING
    assert accounts.observe(counted(1, 5)).restarts == (
        Restart("inference", Cause.CONTAINER),
        Restart("inference", Cause.CONTAINER),
    )
    assert accounts.observe(counted(2, 5)) == NOTHING


def test_the_first_step_is_timed_from_creation_once() -> None:
    accounts = RunAccounts(GPU)  # the run was created 100 s before NOW
    accounts.observe(at(0, "Pending", attempt=0))
    assert accounts.observe(at(50, "Running", step=0, **PREPARED)).first_step_s is None
    assert accounts.observe(at(61, "Running", step=1, **PREPARED)).first_step_s == 161
    assert accounts.observe(at(70, "Running", step=2, **PREPARED)).first_step_s is None


def test_the_first_step_after_a_resumed_checkpoint_is_beyond_it() -> None:
    accounts = RunAccounts(GPU)
    prepared = {"resumeStep": 100, "control": {"preparedAttempt": 1}}
    accounts.observe(at(0, "Preparing"))
    assert accounts.observe(at(5, "Running", step=100, **prepared)).first_step_s is None
    assert accounts.observe(at(9, "Running", step=101, **prepared)).first_step_s == 109


@pytest.mark.parametrize(
    "first",
    [
        at(0, "Running", step=4, **PREPARED),
        at(0, "Restarting", attempt=2, restartsByRole={"trainer": 1}),
        at(0, "Suspended", timeline=[entry("Suspended", 1)]),
        at(0, "Failed"),
    ],
)
def test_a_first_step_that_nobody_can_time_is_not_timed(first: Observed) -> None:
    accounts = RunAccounts(GPU)
    accounts.observe(first)
    prepared = {"attempt": 3, "resumeStep": 0, "control": {"preparedAttempt": 3}}
    accounts.observe(at(8, "Preparing", **prepared))
    assert accounts.observe(at(9, "Running", step=9, **prepared)).first_step_s is None


def test_a_run_that_was_suspended_before_its_first_step_is_not_timed() -> None:
    accounts = RunAccounts(GPU)
    accounts.observe(at(0, "Starting", **PREPARED))
    accounts.observe(at(1, "Suspended", **PREPARED))
    prepared = {"attempt": 2, "resumeStep": 0, "control": {"preparedAttempt": 2}}
    accounts.observe(at(8, "Preparing", **prepared))
    assert accounts.observe(at(9, "Running", step=1, **prepared)).first_step_s is None


def test_lost_steps_are_those_between_the_step_that_was_reached_and_the_checkpoint() -> None:
    accounts = RunAccounts(GPU)
    accounts.observe(at(0, "Running", step=17, **PREPARED))
    lost = {"attempt": 2, "control": {"preparedAttempt": 1}}
    assert accounts.observe(at(1, "Restarting", **lost)).lost_steps is None
    prepared = {"attempt": 2, "resumeStep": 15, "control": {"preparedAttempt": 2}}
    assert accounts.observe(at(2, "Preparing", **prepared)).lost_steps == 2
    assert accounts.observe(at(3, "Running", step=16, **prepared)).lost_steps is None
    # The third attempt begins where the second did: it had made one step.
    again = {"attempt": 3, "resumeStep": 15, "control": {"preparedAttempt": 3}}
    assert accounts.observe(at(4, "Preparing", **again)).lost_steps == 1


def test_lost_steps_are_found_across_a_restart_of_the_operator() -> None:
    accounts = RunAccounts(GPU)
    accounts.observe(
        replace(at(0, "Restarting"), run=run({"attempt": 2, "step": 9, "control": {"preparedAttempt": 1}}))
    )
    prepared = {"attempt": 2, "resumeStep": 5, "control": {"preparedAttempt": 2}}
    assert accounts.observe(at(1, "Preparing", **prepared)).lost_steps == 4


def test_a_first_attempt_loses_nothing() -> None:
    accounts = RunAccounts(GPU)
    accounts.observe(at(0, "Preparing"))
    assert accounts.observe(at(1, "Preparing", **PREPARED)).lost_steps is None


def test_phases_count_every_run_once() -> None:
    accounts = RunAccounts(GPU)
    other = replace(at(0, "Failed"), run=replace(run({"phase": "Failed"}), key=RunKey("ns", "two"), uid="two"))
    for world in (at(0, "Preparing"), at(1, "Running", **PREPARED), other):
        accounts.observe(world)
    assert {phase: count for phase, count in accounts.phases().items() if count} == {Phase.RUNNING: 1, Phase.FAILED: 1}
    assert set(accounts.phases()) == set(Phase)
    accounts.forget(KEY, NOW)
    assert accounts.phases()[Phase.RUNNING] == 0


def test_a_new_run_of_the_name_begins_anew() -> None:
    accounts = RunAccounts(GPU)
    accounts.observe(at(0, "Running", *gang(), orchestrator(), step=5, **PREPARED))
    successor = at(10, "Pending", attempt=0)
    assert accounts.observe(replace(successor, run=replace(successor.run, uid="another"))) == NOTHING
    assert seconds(accounts, 99) == {("trainer", "useful"): 160}


def test_engines_of_runs_that_autoscaling_decides_for() -> None:
    accounts = RunAccounts(GPU)
    decided = {"wanted": 3, "min": 1, "max": 4, "replicas": 1}
    for after, phase, autoscale, found in (
        (0, "Running", decided, [(KEY, 3)]),
        (1, "Running", {**decided, "off": 1}, []),
        (2, "Suspended", decided, []),
        (3, "Running", {"wanted": 3}, []),
    ):
        accounts.observe(at(after, phase, control={"preparedAttempt": 1, "autoscale": autoscale}))
        assert list(accounts.autoscaled()) == found


def test_trainer_pods_that_elastic_gangs_go_on_without() -> None:
    accounts = RunAccounts(GPU)
    gang = {"pods": 2, "replicas": 5, "since": 1}
    for after, phase, found in ((0, "Running", [(KEY, 3)]), (1, "Restarting", [(KEY, 3)]), (2, "Suspended", [])):
        accounts.observe(at(after, phase, control={"preparedAttempt": 1, "gang": gang}))
        assert list(accounts.missing_trainer_pods()) == found


def test_checkpoint_ages_of_runs_that_go_on() -> None:
    accounts = RunAccounts(GPU)
    checkpoint = {"step": 5, "committedAt": to_text(NOW - 40), "sizeBytes": 1}
    accounts.observe(at(0, "Running", checkpoint=checkpoint, **PREPARED))
    assert list(accounts.checkpoint_ages(NOW + 2)) == [(KEY, 42.0)]
    accounts.observe(at(3, "Suspended", checkpoint=checkpoint, **PREPARED))
    assert list(accounts.checkpoint_ages(NOW + 4)) == []
    accounts.observe(at(5, "Running", **PREPARED))
    assert list(accounts.checkpoint_ages(NOW + 6)) == []
