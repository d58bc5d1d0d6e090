"""status as the CRD has it holds all that the operator writes: what it lacks, the API server would drop in silence."""

import dataclasses

import pytest
from pydantic import ValidationError

from echorl_core.names import Phase, Role
from echorl_core.restarts import Ledger
from echorl_manifest.models.status import Control, RunStatus, TimelineEntry
from echorl_manifest.schema import keys
from echorl_operator.observed.memory import Admission, Autoscaling, GangSize, Memory

FULL = Memory(
    phase=Phase.FAILED,
    attempt=3,
    revision="run-3-7",
    rendered_generation=7,
    started_at=1.0,
    active_since=1.5,
    ended_at=2.0,
    failure="NonFinite",
    prepared=3,
    resume_step=25,
    model_commit="abc",
    admission=Admission(3, "digest"),
    not_before=5.0,
    stop_asked_at=6.0,
    ledger=Ledger(dict.fromkeys(Role, 2), 30),
    restarts={str(role): 1 for role in Role},
    restarts_in_place=1,
    replacements=1,
    replacing={"1": 1},
    replaced_at=1,
    engine_restarts={"one-inference-5d8-x": 2},
    judged_ends={"one-inference-5d8-x": 3},
    preparations=1,
    lost_checkpoint="checkpoint 50 is damaged",
    counted="uid-of-a-pod",
    step=31,
    notices=4,
    last_notice="attempt 3: one-trainer-0 was given notice: EvictionByEvictionAPI",
    stepped_attempt=3,
    noticed_attempt=3,
    autoscaling=Autoscaling(3, 1, 4, 2, since=9, is_off=True, before_engines=2, before_pace=1440),
    gang_size=GangSize(1, 2, 7, tries=1, spares_from=67, held_since=68, grows=True),
)


def test_the_notes_of_the_operator_have_a_place():
    control = FULL.control()
    assert set(control) == set(keys(Control))
    status = RunStatus.model_validate({"control": control, "restartsByRole": dict(FULL.restarts)}, strict=False)
    assert status.model_dump(mode="json", by_alias=True, exclude_none=True)["control"] == control


def test_a_later_pass_reads_what_was_decided() -> None:
    assert Memory.of({"control": FULL.control()}).autoscaling == FULL.autoscaling
    assert Memory.of({"control": FULL.control()}).gang_size == FULL.gang_size
    assert Memory.of({"control": {"gang": {"pods": 1, "replicas": 2}}}).gang_size is None
    assert Memory.of({"control": {"autoscale": {"wanted": 3, "min": 1}}}).autoscaling is None


def test_the_example_leaves_nothing_at_its_default():
    default = Memory()
    names = {field.name for field in dataclasses.fields(Memory)}
    assert {name for name in names if getattr(default, name) == getattr(FULL, name)} == set()


def test_phases_are_those_of_the_core():
    assert RunStatus.model_validate({"phase": "Running"}).phase == "Running"
    for phase in Phase:
        TimelineEntry.model_validate(
            {"phase": str(phase), "since": "2026-01-01T00:00:00Z", "attempt": 0, "reason": "x"}
        )
    with pytest.raises(ValidationError):
        RunStatus.model_validate({"phase": "Flying"})


def test_a_field_that_the_crd_lacks_is_an_error_here():
    with pytest.raises(ValidationError, match="Extra inputs"):
        RunStatus.model_validate({"unheardOf": 1})
