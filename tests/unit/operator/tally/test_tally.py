"""The accumulator on lives that are worked out by hand: one run with 2 trainer pods of 8 GPUs and an engine of 2."""

from dataclasses import replace
from typing import Any

import pytest

from echorl_core.names import Phase
from echorl_operator.names import PodRole
from echorl_operator.observed.records import PodPhase, PodRecord
from echorl_operator.observed.roles import RoleState
from echorl_operator.observed.runs import RunKey
from echorl_operator.observed.times import to_text
from echorl_operator.observed.world import Observed
from echorl_operator.tally.restarts import Cause, Restart
from echorl_operator.tally.runs import NOTHING, Tally
from echorl_operator.tally.usage import GpuState
from echorl_testing.observed_worlds import NOW, observed, pod, run

KEY = RunKey("ns", "one")
GPU = "nvidia.com/gpu"
LOST = Restart("trainer", Cause.CRASHED)


def gang(**changes: Any) -> list[PodRecord]:
    return [pod(f"one-trainer-{i}", PodRole.TRAINER, wants=((GPU, "8"),), **changes) for i in range(2)]


def engine(**changes: Any) -> PodRecord:
    return pod("one-inference-x", PodRole.INFERENCE, wants=(("cpu", "4"), (GPU, "2")), **changes)


def orchestrator(**changes: Any) -> PodRecord:
    return pod("one-orchestrator", PodRole.ORCHESTRATOR, **changes)


def at(seconds: float, phase: str, *pods: PodRecord, step: int | None = None, **status: Any) -> Observed:
    """The run so many seconds after its first look."""
    attempt = status.get("attempt", 1)
    state = None if step is None else told(step, attempt)
    written = {"phase": phase, "attempt": attempt, **status}
    record = run({key: value for key, value in written.items() if value is not None})
    return observed(*pods, run=record, now=NOW + seconds, role_state=state)


def told(step: int, attempt: int) -> RoleState:
    return RoleState(
        attempt=attempt,
        phase=Phase.RUNNING,
        step=step,
        waiting_for="",
        reward=None,
        trained=None,
        served_min=None,
        served_max=None,
        staleness_max=None,
        checkpoint=None,
        abandoned="",
        engines=(),
        failure_code=None,
        failure_message="",
        last_step_at=NOW,
        seen_at=NOW,
    )


def entry(phase: str, attempt: int) -> dict[str, Any]:
    return {"phase": phase, "attempt": attempt, "since": to_text(NOW), "reason": "x"}


def seconds(tally: Tally, after: float) -> dict[tuple[str, str], float]:
    return {(str(role), str(state)): value for (role, state), value in tally.gpu_seconds(NOW + after).items() if value}


PREPARED = {"resumeStep": 0, "control": {"preparedAttempt": 1}}


def test_gpu_seconds_of_a_life_without_faults() -> None:
    tally = Tally(GPU)
    tally.observe(at(0, "Preparing"))
    tally.observe(at(10, "Starting", *gang(gated=True, node="", phase=PodPhase.PENDING), **PREPARED))
    # Gates lifted at 30, no node yet; the engine is on its node.
    tally.observe(at(30, "Starting", *gang(node="", phase=PodPhase.PENDING), engine(ready=False), **PREPARED))
    tally.observe(at(40, "Starting", *gang(ready=False), engine(ready=False), **PREPARED))
    tally.observe(at(100, "Running", *gang(), engine(), orchestrator(), step=0, **PREPARED))
    tally.observe(at(400, "Succeeded", *gang(deleted_at=NOW + 430), **PREPARED))
    tally.observe(at(402, "Succeeded", **PREPARED))
    assert seconds(tally, 1000) == {
        ("trainer", "waiting"): 16 * 10,
        ("inference", "starting"): 2 * 70,
        ("trainer", "starting"): 16 * 60,
        ("trainer", "useful"): 16 * 300,
        ("inference", "useful"): 2 * 300,
        ("trainer", "stopping"): 16 * 2,
    }


def test_gpu_seconds_go_on_between_looks() -> None:
    tally = Tally(GPU)
    tally.observe(at(0, "Running", *gang(), orchestrator(), step=3, **PREPARED))
    assert seconds(tally, 5) == {("trainer", "useful"): 80}
    assert seconds(tally, 7) == {("trainer", "useful"): 112}
    # A wall clock that is set back takes nothing away.
    assert seconds(tally, 6) == {("trainer", "useful"): 112}
    assert seconds(tally, 8) == {("trainer", "useful"): 144}
    tally.forget(KEY, NOW + 9)
    assert seconds(tally, 100) == {("trainer", "useful"): 160}


def test_redone_steps_are_part_of_a_restart() -> None:
    tally = Tally(GPU)
    tally.observe(at(0, "Running", *gang(), orchestrator(), step=17, **PREPARED))
    timeline = [entry("Running", 1), entry("Restarting", 2)]
    again = {"attempt": 2, "timeline": timeline, "restartsByRole": {"trainer": 1}}
    tally.observe(at(10, "Restarting", *gang(deleted_at=NOW), **again, control={"preparedAttempt": 1}))
    prepared = {**again, "resumeStep": 15, "control": {"preparedAttempt": 2, "reachedStep": 17}}
    tally.observe(at(20, "Starting", *gang(attempt=2, ready=False), **prepared))
    tally.observe(at(50, "Running", *gang(attempt=2), orchestrator(attempt=2), step=15, **prepared))
    tally.observe(at(60, "Running", *gang(attempt=2), orchestrator(attempt=2), step=16, **prepared))
    tally.observe(at(70, "Running", *gang(attempt=2), orchestrator(attempt=2), step=17, **prepared))
    assert seconds(tally, 75) == {("trainer", "useful"): 16 * (10 + 5), ("trainer", "restarting"): 16 * 60}


def test_steps_after_the_first_look_are_reached_too() -> None:
    tally = Tally(GPU)
    tally.observe(at(0, "Running", *gang(), orchestrator(), step=3, **PREPARED))
    tally.observe(at(10, "Running", *gang(), orchestrator(), step=17, **PREPARED))
    edited = {"attempt": 2, "timeline": [entry("Restarting", 2)], "resumeStep": 15, "control": {"preparedAttempt": 2}}
    tally.observe(at(20, "Running", *gang(attempt=2), orchestrator(attempt=2), step=16, **edited))
    tally.observe(at(30, "Running", *gang(attempt=2), orchestrator(attempt=2), step=17, **edited))
    assert seconds(tally, 40) == {("trainer", "useful"): 160 * 3, ("trainer", "restarting"): 160}


def test_a_restart_is_known_to_the_next_process_of_the_operator() -> None:
    tally = Tally(GPU)
    prepared = {
        "attempt": 2,
        "timeline": [entry("Restarting", 2), entry("Running", 2)],
        "restartsByRole": {"trainer": 1},
        "resumeStep": 15,
        "control": {"preparedAttempt": 2, "reachedStep": 17},
    }
    assert tally.observe(at(0, "Running", *gang(attempt=2), orchestrator(attempt=2), step=16, **prepared)) == NOTHING
    tally.observe(at(10, "Running", *gang(attempt=2), orchestrator(attempt=2), step=17, **prepared))
    assert seconds(tally, 11) == {("trainer", "restarting"): 160, ("trainer", "useful"): 16}


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
            at(0, "Running", engine(), orchestrator(), conditions=[{"type": "Stalled", "status": "True"}]),
            GpuState.WAITING,
        ),
        (
            at(0, "Running", engine(), orchestrator(), conditions=[{"type": "Stalled", "status": "False"}]),
            GpuState.USEFUL,
        ),
    ],
)
def test_what_an_engines_gpus_do(world: Observed, state: GpuState) -> None:
    tally = Tally(GPU)
    tally.observe(world)
    assert seconds(tally, 10) == {("inference", str(state)): 20}


def test_gpus_of_a_run_that_is_being_suspended() -> None:
    tally = Tally(GPU)
    world = at(0, "Running", *gang(), orchestrator(), step=3)
    tally.observe(replace(world, run=run({"phase": "Running", "attempt": 1}, suspend=True)))
    assert seconds(tally, 10) == {("trainer", "stopping"): 160}


def test_another_resource_counts_where_the_installation_says_so() -> None:
    tally = Tally("amd.com/gpu")
    amd = pod("one-trainer-0", PodRole.TRAINER, wants=(("amd.com/gpu", "4"),))
    tally.observe(at(0, "Running", amd, engine(), orchestrator(), step=1))
    assert seconds(tally, 10) == {("trainer", "useful"): 40}


def test_a_pod_that_ended_holds_nothing() -> None:
    tally = Tally(GPU)
    tally.observe(at(0, "Running", *gang(phase=PodPhase.FAILED), orchestrator(), step=1))
    assert seconds(tally, 10) == {}


def test_restarts_are_counted_once_status_shows_them() -> None:
    tally = Tally(GPU)
    running = {**PREPARED, "attempt": 1}
    tally.observe(at(0, "Running", **running))
    tally.planned(KEY, LOST)
    # The write failed; the next pass decides again.
    assert tally.observe(at(1, "Running", **running)) == NOTHING
    tally.planned(KEY, Restart("trainer", Cause.OUT_OF_MEMORY))
    again = {"attempt": 2, "restartsByRole": {"trainer": 1}, "control": {"preparedAttempt": 1}}
    found = tally.observe(at(2, "Restarting", **again))
    assert found.restarts == (Restart("trainer", Cause.OUT_OF_MEMORY),)
    assert tally.observe(at(3, "Restarting", **again)) == NOTHING
    # What was planned once counts once, whatever follows.
    assert tally.observe(at(4, "Preparing", **{**again, "attempt": 3})) == NOTHING


def test_an_edit_counts_and_a_beginning_does_not() -> None:
    tally = Tally(GPU)
    tally.observe(at(0, "Running", **PREPARED))
    tally.planned(KEY, Restart("trainer", Cause.EDITED))
    assert tally.observe(at(1, "Restarting", attempt=2)).restarts == (Restart("trainer", Cause.EDITED),)
    tally.planned(KEY, None)
    assert tally.observe(at(2, "Suspended", attempt=2)).restarts == ()
    assert tally.observe(at(3, "Preparing", attempt=3)).restarts == ()


def test_another_try_of_prepare_counts() -> None:
    tally = Tally(GPU)
    tally.observe(at(0, "Preparing"))
    tally.planned(KEY, Restart("prepare", Cause.CRASHED))
    found = tally.observe(at(1, "Preparing", control={"failedPreparations": 1}))
    assert found.restarts == (Restart("prepare", Cause.CRASHED),)


def test_a_restart_that_another_process_decided_is_of_unknown_cause() -> None:
    tally = Tally(GPU)
    tally.observe(at(0, "Running", **PREPARED))
    found = tally.observe(at(1, "Running", restartsByRole={"orchestrator": 1}, **PREPARED))
    assert found.restarts == (Restart("orchestrator", Cause.UNKNOWN),)


def test_engines_that_their_kubelets_start_again() -> None:
    def counted(at_s: float, times: int) -> Observed:
        return at(at_s, "Running", restartsByRole={"inference": times}, **PREPARED)

    tally = Tally(GPU)
    assert tally.observe(counted(0, 3)) == NOTHING
    assert tally.observe(counted(1, 5)).restarts == (
        Restart("inference", Cause.CONTAINER),
        Restart("inference", Cause.CONTAINER),
    )
    assert tally.observe(counted(2, 5)) == NOTHING


def test_the_first_step_is_timed_from_creation_once() -> None:
    tally = Tally(GPU)  # the run was created 100 s before NOW
    tally.observe(at(0, "Pending", attempt=0))
    assert tally.observe(at(50, "Running", step=0, **PREPARED)).first_step_s is None
    assert tally.observe(at(61, "Running", step=1, **PREPARED)).first_step_s == 161
    assert tally.observe(at(70, "Running", step=2, **PREPARED)).first_step_s is None


def test_the_first_step_after_a_resumed_checkpoint_is_beyond_it() -> None:
    tally = Tally(GPU)
    prepared = {"resumeStep": 100, "control": {"preparedAttempt": 1}}
    tally.observe(at(0, "Preparing"))
    assert tally.observe(at(5, "Running", step=100, **prepared)).first_step_s is None
    assert tally.observe(at(9, "Running", step=101, **prepared)).first_step_s == 109


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
    tally = Tally(GPU)
    tally.observe(first)
    prepared = {"attempt": 3, "resumeStep": 0, "control": {"preparedAttempt": 3}}
    tally.observe(at(8, "Preparing", **prepared))
    assert tally.observe(at(9, "Running", step=9, **prepared)).first_step_s is None


def test_a_run_that_was_suspended_before_its_first_step_is_not_timed() -> None:
    tally = Tally(GPU)
    tally.observe(at(0, "Starting", **PREPARED))
    tally.observe(at(1, "Suspended", **PREPARED))
    prepared = {"attempt": 2, "resumeStep": 0, "control": {"preparedAttempt": 2}}
    tally.observe(at(8, "Preparing", **prepared))
    assert tally.observe(at(9, "Running", step=1, **prepared)).first_step_s is None


def test_lost_steps_are_those_between_the_step_that_was_reached_and_the_checkpoint() -> None:
    tally = Tally(GPU)
    tally.observe(at(0, "Running", step=17, **PREPARED))
    lost = {"attempt": 2, "control": {"preparedAttempt": 1}}
    assert tally.observe(at(1, "Restarting", **lost)).lost_steps is None
    prepared = {"attempt": 2, "resumeStep": 15, "control": {"preparedAttempt": 2}}
    assert tally.observe(at(2, "Preparing", **prepared)).lost_steps == 2
    assert tally.observe(at(3, "Running", step=16, **prepared)).lost_steps is None
    # The third attempt begins where the second did: it had made one step.
    again = {"attempt": 3, "resumeStep": 15, "control": {"preparedAttempt": 3}}
    assert tally.observe(at(4, "Preparing", **again)).lost_steps == 1


def test_lost_steps_are_found_across_a_restart_of_the_operator() -> None:
    tally = Tally(GPU)
    tally.observe(replace(at(0, "Restarting"), run=run({"attempt": 2, "step": 9, "control": {"preparedAttempt": 1}})))
    prepared = {"attempt": 2, "resumeStep": 5, "control": {"preparedAttempt": 2}}
    assert tally.observe(at(1, "Preparing", **prepared)).lost_steps == 4


def test_a_first_attempt_loses_nothing() -> None:
    tally = Tally(GPU)
    tally.observe(at(0, "Preparing"))
    assert tally.observe(at(1, "Preparing", **PREPARED)).lost_steps is None


def test_phases_count_every_run_once() -> None:
    tally = Tally(GPU)
    other = replace(at(0, "Failed"), run=replace(run({"phase": "Failed"}), key=RunKey("ns", "two"), uid="two"))
    for world in (at(0, "Preparing"), at(1, "Running", **PREPARED), other):
        tally.observe(world)
    assert {phase: count for phase, count in tally.phases().items() if count} == {Phase.RUNNING: 1, Phase.FAILED: 1}
    assert set(tally.phases()) == set(Phase)
    tally.forget(KEY, NOW)
    assert tally.phases()[Phase.RUNNING] == 0


def test_a_new_run_of_the_name_begins_anew() -> None:
    tally = Tally(GPU)
    tally.observe(at(0, "Running", *gang(), orchestrator(), step=5, **PREPARED))
    successor = at(10, "Pending", attempt=0)
    assert tally.observe(replace(successor, run=replace(successor.run, uid="another"))) == NOTHING
    assert seconds(tally, 99) == {("trainer", "useful"): 160}


def test_checkpoint_ages_of_runs_that_go_on() -> None:
    tally = Tally(GPU)
    checkpoint = {"step": 5, "committedAt": to_text(NOW - 40), "sizeBytes": 1}
    tally.observe(at(0, "Running", checkpoint=checkpoint, **PREPARED))
    assert list(tally.checkpoint_ages(NOW + 2)) == [(KEY, 42.0)]
    tally.observe(at(3, "Suspended", checkpoint=checkpoint, **PREPARED))
    assert list(tally.checkpoint_ages(NOW + 4)) == []
    tally.observe(at(5, "Running", **PREPARED))
    assert list(tally.checkpoint_ages(NOW + 6)) == []
