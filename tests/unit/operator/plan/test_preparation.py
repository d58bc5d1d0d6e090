import dataclasses
from typing import Any

import msgspec
import pytest

from echorl_core.termination_message import Preparation, SavedCheckpoint, SkippedCheckpoint, encoded, message_of_end
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ContainerPhase, PodPhase, PodRecord
from echorl_operator.plan import attempts
from echorl_operator.plan.builder import PlanBuilder
from echorl_operator.plan.outcome import Outcome
from echorl_operator.settings import Settings
from echorl_testing.operator.observed_worlds import container, observed, pod, run


def prepared(resume_step: int, *skipped: SkippedCheckpoint) -> PodRecord:
    saved = (
        [SavedCheckpoint(step=resume_step, committed_at="2026-01-01T00:00:00Z", size_bytes=1)] if resume_step else []
    )
    done = Preparation(resume_step=resume_step, model_path="/m", committed=saved, skipped=list(skipped))
    said = encoded(msgspec.structs.replace(message_of_end("prepare", 0, "done", attempt=2), prepared=done)).decode()
    main = container("prepare", ContainerPhase.TERMINATED, exit_code=0, message=said)
    return pod("one-prepare-2", PodRole.PREPARE, attempt=2, phase=PodPhase.SUCCEEDED, containers=(main,))


def noted(ended: PodRecord, *, known: int, **spec: Any) -> PlanBuilder:
    record = run({"attempt": 2, "checkpoint": {"step": known}}, **spec)
    builder = PlanBuilder(observed(ended, run=record), Settings(operator_version="1"), "t")
    spec = EchoRLRunSpec.model_validate(record.spec)
    assert attempts.ensure_prepared(builder, None, spec) is Outcome.PENDING  # type: ignore[arg-type]
    assert builder.fence
    assert builder.memory.resume_step is not None
    return builder


DAMAGED = SkippedCheckpoint(step=50, reason="rank_0.bin: missing", damaged=True)


@pytest.mark.parametrize(
    ("ended", "known", "lost"),
    [
        (prepared(50), 50, ""),
        (prepared(50), 25, ""),
        (prepared(25, DAMAGED), 50, "checkpoint 50 is damaged: rank_0.bin: missing"),
        (prepared(25), 50, "checkpoint 50 was committed and is not on the volume any more"),
        (prepared(0), 50, "checkpoint 50 was committed and is not on the volume any more"),
        (prepared(25, SkippedCheckpoint(step=50, reason="of an older attempt")), 50, ""),
        (prepared(50, SkippedCheckpoint(step=25, reason="rank_0.bin: missing", damaged=True)), 50, ""),
    ],
)
def test_a_checkpoint_that_should_have_been_resumed_from(ended: PodRecord, known: int, lost: str) -> None:
    builder = noted(ended, known=known)
    assert builder.memory.lost_checkpoint == lost
    assert any(note.reason == "CheckpointLost" for note in builder.notes) is bool(lost)


def test_a_step_that_the_user_asked_for_loses_nothing() -> None:
    assert noted(prepared(25), known=50, resume={"policy": "FromStep", "step": 25}).memory.lost_checkpoint == ""


def test_a_new_attempt_forgets_nothing_of_it_before_it_is_prepared() -> None:
    builder = noted(prepared(25, DAMAGED), known=50)
    following = builder.memory.next_attempt(3, "one-3-1", 1)
    assert following.lost_checkpoint == builder.memory.lost_checkpoint
    assert dataclasses.replace(following, lost_checkpoint="").control().get("lostCheckpoint") is None
