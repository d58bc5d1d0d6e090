"""GPU-seconds by what they were for, on lives that are worked out by hand."""

from dataclasses import replace

import pytest

from echorl_operator.accounting.runs import NOTHING, RunAccounts
from echorl_operator.accounting.usage import GpuState
from echorl_operator.names import PodRole
from echorl_operator.observed.records import PodPhase
from echorl_operator.observed.world import Observed
from echorl_testing.operator.accounted_run import GPU, KEY, PREPARED, at, engine, entry, gang, orchestrator, seconds
from echorl_testing.operator.observed_worlds import NOW, pod, run


def test_gpu_seconds_of_a_life_without_faults() -> None:
    accounts = RunAccounts(GPU)
    accounts.observe(at(0, "Preparing"))
    accounts.observe(at(10, "Starting", *gang(gated=True, node="", phase=PodPhase.PENDING), **PREPARED))
    # Gates lifted at 30, no node yet; the engine is on its node.
    accounts.observe(at(30, "Starting", *gang(node="", phase=PodPhase.PENDING), engine(ready=False), **PREPARED))
    accounts.observe(at(40, "Starting", *gang(ready=False), engine(ready=False), **PREPARED))
    accounts.observe(at(100, "Running", *gang(), engine(), orchestrator(), step=0, **PREPARED))
    accounts.observe(at(400, "Succeeded", *gang(deleted_at=NOW + 430), **PREPARED))
    accounts.observe(at(402, "Succeeded", **PREPARED))
    assert seconds(accounts, 1000) == {
        ("trainer", "waiting"): 16 * 10,
        ("inference", "starting"): 2 * 70,
        ("trainer", "starting"): 16 * 60,
        ("trainer", "useful"): 16 * 300,
        ("inference", "useful"): 2 * 300,
        ("trainer", "stopping"): 16 * 2,
    }


def test_gpu_seconds_go_on_between_looks() -> None:
    accounts = RunAccounts(GPU)
    accounts.observe(at(0, "Running", *gang(), orchestrator(), step=3, **PREPARED))
    assert seconds(accounts, 5) == {("trainer", "useful"): 80}
    assert seconds(accounts, 7) == {("trainer", "useful"): 112}
    # A wall clock that is set back takes nothing away.
    assert seconds(accounts, 6) == {("trainer", "useful"): 112}
    assert seconds(accounts, 8) == {("trainer", "useful"): 144}
    accounts.forget(KEY, NOW + 9)
    assert seconds(accounts, 100) == {("trainer", "useful"): 160}


def test_redone_steps_are_part_of_a_restart() -> None:
    accounts = RunAccounts(GPU)
    accounts.observe(at(0, "Running", *gang(), orchestrator(), step=17, **PREPARED))
    timeline = [entry("Running", 1), entry("Restarting", 2)]
    again = {"attempt": 2, "timeline": timeline, "restartsByRole": {"trainer": 1}}
    accounts.observe(at(10, "Restarting", *gang(deleted_at=NOW), **again, control={"preparedAttempt": 1}))
    prepared = {**again, "resumeStep": 15, "control": {"preparedAttempt": 2, "reachedStep": 17}}
    accounts.observe(at(20, "Starting", *gang(attempt=2, ready=False), **prepared))
    accounts.observe(at(50, "Running", *gang(attempt=2), orchestrator(attempt=2), step=15, **prepared))
    accounts.observe(at(60, "Running", *gang(attempt=2), orchestrator(attempt=2), step=16, **prepared))
    accounts.observe(at(70, "Running", *gang(attempt=2), orchestrator(attempt=2), step=17, **prepared))
    assert seconds(accounts, 75) == {("trainer", "useful"): 16 * (10 + 5), ("trainer", "restarting"): 16 * 60}


def test_steps_after_the_first_look_are_reached_too() -> None:
    accounts = RunAccounts(GPU)
    accounts.observe(at(0, "Running", *gang(), orchestrator(), step=3, **PREPARED))
    accounts.observe(at(10, "Running", *gang(), orchestrator(), step=17, **PREPARED))
    edited = {"attempt": 2, "timeline": [entry("Restarting", 2)], "resumeStep": 15, "control": {"preparedAttempt": 2}}
    accounts.observe(at(20, "Running", *gang(attempt=2), orchestrator(attempt=2), step=16, **edited))
    accounts.observe(at(30, "Running", *gang(attempt=2), orchestrator(attempt=2), step=17, **edited))
    assert seconds(accounts, 40) == {("trainer", "useful"): 160 * 3, ("trainer", "restarting"): 160}


def test_a_restart_is_known_to_the_next_process_of_the_operator() -> None:
    accounts = RunAccounts(GPU)
    prepared = {
        "attempt": 2,
        "timeline": [entry("Restarting", 2), entry("Running", 2)],
        "restartsByRole": {"trainer": 1},
        "resumeStep": 15,
        "control": {"preparedAttempt": 2, "reachedStep": 17},
    }
    assert accounts.observe(at(0, "Running", *gang(attempt=2), orchestrator(attempt=2), step=16, **prepared)) == NOTHING
    accounts.observe(at(10, "Running", *gang(attempt=2), orchestrator(attempt=2), step=17, **prepared))
    assert seconds(accounts, 11) == {("trainer", "restarting"): 160, ("trainer", "useful"): 16}


@pytest.mark.parametrize(
    ("world", "state"),
    [
        (at(0, "Running", engine(ready=False), orchestrator(), step=1), GpuState.STARTING),
        (at(0, "Running", engine(deleted_at=NOW), orchestrator(), step=1), GpuState.STOPPING),
        (at(0, "Running", engine(), orchestrator(ready=False), step=1), GpuState.RESTARTING),
        (at(0, "Running", engine(), step=1), GpuState.RESTARTING),
        (at(0, "Suspended", engine(deleted_at=NOW)), GpuState.STOPPING),
        (at(0, "Failed", engine()), GpuState.STOPPING),
        (at(0, "Running", engine(node="", phase=PodPhase.PENDING), orchestrator()), GpuState.WAITING),
        (
            at(
                0,
                "Running",
                engine(),
                orchestrator(),
                conditions=[{"type": "Stalled", "status": "True", "reason": "NoStep"}],
            ),
            GpuState.WAITING,
        ),
        (
            at(0, "Running", engine(), orchestrator(), conditions=[{"type": "Stalled", "status": "False"}]),
            GpuState.USEFUL,
        ),
    ],
)
def test_what_an_engines_gpus_do(world: Observed, state: GpuState) -> None:
    accounts = RunAccounts(GPU)
    accounts.observe(world)
    assert seconds(accounts, 10) == {("inference", str(state)): 20}


def test_gpus_of_a_run_that_is_being_suspended() -> None:
    accounts = RunAccounts(GPU)
    world = at(0, "Running", *gang(), orchestrator(), step=3)
    accounts.observe(replace(world, run=run({"phase": "Running", "attempt": 1}, suspend=True)))
    assert seconds(accounts, 10) == {("trainer", "stopping"): 160}


def test_another_resource_counts_where_the_installation_says_so() -> None:
    accounts = RunAccounts("amd.com/gpu")
    amd = pod("one-trainer-0", PodRole.TRAINER, wants=(("amd.com/gpu", "4"),))
    accounts.observe(at(0, "Running", amd, engine(), orchestrator(), step=1))
    assert seconds(accounts, 10) == {("trainer", "useful"): 40}


def test_a_pod_that_ended_holds_nothing() -> None:
    accounts = RunAccounts(GPU)
    accounts.observe(at(0, "Running", *gang(phase=PodPhase.FAILED), orchestrator(), step=1))
    assert seconds(accounts, 10) == {}
