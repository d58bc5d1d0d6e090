import dataclasses
import math

import msgspec
import pytest

from echorl_core.names import Phase, Role
from echorl_core.restarts import Ledger
from echorl_core.termination_message import Preparation, SavedCheckpoint, TerminationMessage
from echorl_core.wire.goodput import Goodput
from echorl_core.wire.run_state import SandboxesState, SandboxWaits
from echorl_manifest.models.status import RunStatus
from echorl_operator.names import PodRole
from echorl_operator.observed.memory import Admission, Memory
from echorl_operator.observed.records import ContainerPhase
from echorl_operator.observed.roles import Checkpoint, RoleState
from echorl_operator.status.pass_report import PassReport
from echorl_operator.status.report import status_of
from echorl_testing.operator.observed_worlds import NOW, container, observed, pod, run

MEMORY = Memory(
    phase=Phase.RUNNING,
    attempt=2,
    revision="one-2-1",
    rendered_generation=1,
    started_at=NOW - 100,
    active_since=NOW - 90,
    prepared=2,
    resume_step=5,
    model_commit="abc",
    admission=Admission(2, "0123456789abcdef"),
    not_before=NOW + 3,
    stop_asked_at=NOW,
    ledger=Ledger({Role.TRAINER: 1}, 4),
    restarts={"trainer": 1, "orchestrator": 2},
    counted="uid-x",
    preparations=1,
    step=7,
)
SAID = PassReport(Phase.RUNNING, "Training", "waiting for episodes", {}, 5, trainer_pods=2, engines=1)
STATE = RoleState(
    attempt=2,
    phase=Phase.RUNNING,
    step=7,
    waiting_for="episodes",
    reward=0.25,
    trained=7,
    served_min=6,
    served_max=7,
    staleness_max=1,
    checkpoint=Checkpoint(5, "2026-01-01T00:00:00Z", 99),
    abandoned="",
    engines=(),
    failure_code=None,
    failure_message="",
    last_step_at=NOW,
    seen_at=NOW,
)


def world(status=None, **changes):
    pods = [pod(f"one-trainer-{index}", PodRole.TRAINER, attempt=2) for index in range(2)]
    return observed(*pods, run=run(status), role_state=STATE, **changes)


def condition(status, kind):
    return next(one for one in status["conditions"] if one["type"] == kind)


def test_time_is_told_as_the_api_server_takes_it_and_stays_while_nobody_tells():
    told = Goodput(
        measured_at="2026-01-01T00:00:00+00:00",
        gpu_seconds={"trainer": {"useful": 1.6, "redone": 0.2, "odd": 5.0}, "inference": {"stale": math.inf}},
        useful_ratio=0.25,
        untrained_tokens={"stale": 3, "lost": -1},
    )
    state = dataclasses.replace(STATE, goodput=told)
    status = status_of(dataclasses.replace(world(), role_state=state), MEMORY, SAID)
    assert status["goodput"] == {"usefulPercent": 25, "trainer/useful": 2, "tokens/stale": 3}
    assert status_of(world(status), MEMORY, SAID)["goodput"] == status["goodput"]


def test_memory_comes_back_from_status_as_it_was_written():
    status = status_of(world(), MEMORY, SAID)
    assert Memory.of(status) == MEMORY
    lost = dataclasses.replace(MEMORY, lost_checkpoint="checkpoint 9 is damaged")
    assert Memory.of(status_of(world(), lost, SAID)) == lost
    assert Memory.of({}) == Memory()
    broken = {"attempt": "x", "control": 3, "phase": "Odd", "startTime": "soon", "restartsByRole": {"trainer": "many"}}
    assert Memory.of(broken) == Memory()


def test_the_api_server_prunes_nothing_of_it():
    status = status_of(world(), MEMORY, SAID)
    assert RunStatus.model_validate(status, strict=False).phase == "Running"


@pytest.mark.parametrize(("reward", "told"), [(-1234567.8, "-1234567.800"), (-3.4e38, "-3.4e+38"), (1e300, "1e+300")])
def test_a_reward_of_any_size_is_one_that_the_api_server_takes(reward, told):
    world_of = dataclasses.replace(world(), role_state=dataclasses.replace(STATE, reward=reward))
    status = status_of(world_of, MEMORY, SAID)
    assert RunStatus.model_validate(status, strict=False).reward == told


def test_a_second_pass_writes_the_same():
    once = status_of(world(), MEMORY, SAID)
    later = status_of(dataclasses.replace(world(once), now=NOW + 60), MEMORY, SAID)
    assert later == once


def test_what_the_orchestrator_says_stays_while_it_is_silent():
    once = status_of(world(), MEMORY, SAID)
    assert (once["step"], once["reward"], once["policy"]["served"]) == (7, "0.250", {"min": 6, "max": 7})
    silent = status_of(dataclasses.replace(world(once), role_state=None), MEMORY, SAID)
    assert {key: silent[key] for key in ("step", "reward", "policy", "checkpoint")} == {
        key: once[key] for key in ("step", "reward", "policy", "checkpoint")
    }


def test_sandboxes_are_counted_and_what_was_heard_of_them_stays_while_nobody_tells():
    def told(state, before=None, spec=None, *pods):
        spec = {"provider": "pod"} if spec is None else spec
        seen = observed(
            run=run({"attempt": 2, **(before or {})}, sandboxes=spec),
            role_state=state,
            sandboxes=pods or (pod("s", None),),
        )
        status = status_of(seen, MEMORY, SAID)
        RunStatus.model_validate(status, strict=False)
        return status.get("sandboxes")

    waits = [SandboxWaits(why="quota", count=4, reason="w" * 2000)]
    heard = dataclasses.replace(STATE, sandboxes=SandboxesState(waiting=waits, lost={"evicted": 2, "odd": 7}))
    waiting = [{"reason": "QuotaExceeded", "count": 4, "message": "w" * 1024}]
    once = told(heard)
    assert once == {"alive": 1, "starting": 0, "waiting": waiting, "lost": {"evicted": 2}}
    assert told(None, {"sandboxes": once}) == once
    lacks = "0/1 nodes are available: 1 Insufficient cpu."
    lone = pod("s", None, ready=False, node="", containers=(), unscheduled=lacks)
    both = told(None, {"sandboxes": once}, None, lone)["waiting"]
    assert [waits["reason"] for waits in both] == ["Unschedulable", "QuotaExceeded"]
    assert told(STATE) == {"alive": 1, "starting": 0}
    assert told(dataclasses.replace(heard, sandboxes=SandboxesState()), {"sandboxes": once}) == {
        "alive": 1,
        "starting": 0,
    }
    assert told(heard, spec={"provider": "process"}) is None
    kept = (pod("s", None, claimed=True), pod("w", None, warm=True), pod("v", None, warm=True, ready=False))
    warm = {"provider": "pod", "warmReplicas": 2}
    assert told(STATE, None, warm, *kept) == {"alive": 1, "starting": 0, "warm": 1, "claimed": 1}
    assert told(STATE, None, warm) == {"alive": 1, "starting": 0, "warm": 0, "claimed": 0}


def test_an_older_attempts_orchestrator_is_not_listened_to():
    stale = dataclasses.replace(STATE, attempt=1, step=19)
    status = status_of(dataclasses.replace(world({"attempt": 1, "step": 3}), role_state=stale), MEMORY, SAID)
    assert status["step"] == MEMORY.resume_step


def test_checkpoints_that_are_overdue_are_told():
    def committed(step: int, saved: int | None) -> dict:
        checkpoint = None if saved is None else Checkpoint(saved, "2026-01-01T00:00:00Z", 9)
        state = dataclasses.replace(STATE, step=step, checkpoint=checkpoint, abandoned="disk full")
        status = status_of(dataclasses.replace(world(), role_state=state), MEMORY, SAID)
        return condition(status, "CheckpointCommitted")

    assert committed(20, 5)["status"] == "True"
    late = committed(21, 5)
    assert (late["status"], late["reason"]) == ("False", "Overdue")
    assert "disk full" in late["message"]
    assert committed(7, None)["status"] == "Unknown"


def test_a_checkpoint_that_was_given_up_is_told_until_the_next_one_is_committed():
    def told(lost: int | None, saved: int | None, step: int = 11) -> tuple[str, str, str]:
        checkpoint = None if saved is None else Checkpoint(saved, "2026-01-01T00:00:00Z", 9)
        why = "checkpoint 10: could not save: no space left on device"
        state = dataclasses.replace(STATE, step=step, checkpoint=checkpoint, abandoned=why, abandoned_step=lost)
        found = condition(
            status_of(dataclasses.replace(world(), role_state=state), MEMORY, SAID), "CheckpointCommitted"
        )
        return found["status"], found["reason"], found["message"]

    assert told(10, 5) == (
        "False",
        "Abandoned",
        "checkpoint 10: could not save: no space left on device; the run goes on, and can begin again at step 5",
    )
    assert told(10, None)[2].endswith("begin again at step 5"), "that is where this attempt began"
    assert told(None, 15, 16) == ("True", "Committed", "step 15")
    assert told(10, 5, 21)[1] == "Overdue"


def test_a_problem_is_told_and_stays_to_be_read_when_it_is_over():
    wrong = dataclasses.replace(SAID, problems={"Blocked": ("Unschedulable", "no GPU")})
    once = status_of(world(), MEMORY, wrong)
    assert condition(once, "Blocked")["message"] == "no GPU"
    assert condition(once, "Progressing")["status"] == "False"
    healed = status_of(dataclasses.replace(world(once), now=NOW + 5), MEMORY, SAID)
    assert (condition(healed, "Blocked")["status"], condition(healed, "Blocked")["reason"]) == ("False", "Healed")


def test_the_timeline_is_bounded_and_grows_with_phase_and_attempt_alone():
    status = {}
    for number in range(1, 80):
        memory = dataclasses.replace(MEMORY, attempt=number)
        status = status_of(world(status), memory, SAID)
        assert status_of(world(status), memory, SAID)["timeline"] == status["timeline"]
    assert len(status["timeline"]) == 64
    assert status["timeline"][-1]["attempt"] == 79


def prepared(*committed: int) -> Preparation:
    saved = [SavedCheckpoint(step=step, committed_at="2026-01-01T00:00:00Z", size_bytes=step) for step in committed]
    return Preparation(resume_step=committed[0] if committed else 0, model_path="/m", committed=saved)


def test_what_prepare_finds_replaces_what_status_knew() -> None:
    before = {"attempt": 2, "checkpoint": {"step": 50, "committedAt": "2026-01-01T00:00:00Z", "sizeBytes": 9}}
    silent = dataclasses.replace(world(before), role_state=None)
    found = status_of(silent, MEMORY, dataclasses.replace(SAID, preparation=prepared(25, 5)))
    assert (found["checkpoint"]["step"], found["checkpoint"]["path"]) == (25, "checkpoints/step_000025")
    assert "checkpoint" not in status_of(silent, MEMORY, dataclasses.replace(SAID, preparation=prepared()))


def test_a_lost_checkpoint_is_told_whatever_the_orchestrator_says() -> None:
    lost = dataclasses.replace(MEMORY, lost_checkpoint="checkpoint 50 is damaged: rank_0.bin: missing")
    for told in (STATE, None):
        status = status_of(dataclasses.replace(world(), role_state=told), lost, SAID)
        found = condition(status, "CheckpointCommitted")
        assert (found["status"], found["reason"]) == ("False", "Lost")
        assert found["message"] == "checkpoint 50 is damaged: rank_0.bin: missing; attempt 2 goes on from step 5"


def test_what_was_told_of_checkpoints_stays_while_nobody_tells() -> None:
    once = status_of(world(), MEMORY, SAID)
    silent = status_of(dataclasses.replace(world(once), role_state=None, now=NOW + 60), MEMORY, SAID)
    assert condition(silent, "CheckpointCommitted") == condition(once, "CheckpointCommitted")


def orchestrator_that_ended(**words):
    said = TerminationMessage(
        role="orchestrator", exit_name="", message="finished", **{"attempt": 2, "exit_code": 0} | words
    )
    text = msgspec.json.encode(said).decode()
    main = container("orchestrator", ContainerPhase.TERMINATED, exit_code=said.exit_code, message=text)
    return pod("one-orchestrator", PodRole.ORCHESTRATOR, attempt=2, containers=(main,))


def test_at_the_end_status_has_what_the_orchestrator_said_last_not_what_was_polled_before():
    saved = SavedCheckpoint(step=9, committed_at="2026-01-01T00:01:00Z", size_bytes=98)
    end = observed(orchestrator_that_ended(step=9, saved=saved), run=run(), role_state=STATE)
    status = status_of(end, MEMORY, SAID)
    assert (status["step"], status["checkpoint"]["step"], status["policy"]["trained"]) == (9, 9, 9)
    assert status["policy"]["served"] == {"min": 6, "max": 7}
    # The same without a poll ever answered, and once the pod is gone.
    assert status_of(dataclasses.replace(end, role_state=None), MEMORY, SAID)["step"] == 9
    later = status_of(observed(run=run(status)), MEMORY, SAID)
    assert (later["step"], later["checkpoint"]["step"]) == (9, 9)


def test_the_last_reward_of_a_run_that_ended_before_anybody_asked():
    end = observed(orchestrator_that_ended(step=1, reward=0.75), run=run())
    status = status_of(end, MEMORY, SAID)
    assert status["reward"] == "0.750"
    assert status_of(observed(run=run(status)), MEMORY, SAID)["reward"] == "0.750"
    # It trained no step, or is of a version that does not say: what was told before stays.
    silent = observed(orchestrator_that_ended(step=1), run=run({"attempt": 2, "reward": "0.500"}))
    assert status_of(silent, MEMORY, SAID)["reward"] == "0.500"


@pytest.mark.parametrize("at", ["", "yesterday", "2026-01-01T00:00:00", "0001-01-01T00:00:00Z"])
def test_a_checkpoint_without_a_time_of_its_own_does_not_stop_the_status(at):
    saved = SavedCheckpoint(step=9, committed_at=at, size_bytes=98)
    end = observed(orchestrator_that_ended(step=9, saved=saved), run=run())
    status = status_of(end, MEMORY, SAID)
    assert (status["step"], status.get("checkpoint")) == (9, None)
    known = {"step": 5, "committedAt": "2026-01-01T00:00:00Z", "sizeBytes": 9, "path": "checkpoints/step_000005"}
    before = dataclasses.replace(end, run=run({"attempt": 2, "checkpoint": known}))
    assert status_of(before, MEMORY, SAID)["checkpoint"] == known


def test_times_of_checkpoints_are_written_as_the_api_server_writes_them():
    saved = SavedCheckpoint(step=9, committed_at="2026-01-01T02:00:00.5+01:00", size_bytes=98)
    end = observed(orchestrator_that_ended(step=9, saved=saved), run=run())
    assert status_of(end, MEMORY, SAID)["checkpoint"]["committedAt"] == "2026-01-01T01:00:00Z"


@pytest.mark.parametrize("words", [{"attempt": 1}, {"exit_code": 1}, {"step": 2**63}, {"step": -1}])
def test_words_of_another_attempt_or_of_a_crash_are_no_result(words):
    pod = orchestrator_that_ended(**{"step": 9} | words)
    assert status_of(observed(pod, run=run(), role_state=STATE), MEMORY, SAID)["step"] == 7
