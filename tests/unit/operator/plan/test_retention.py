"""``storage.retain`` of a run that is there already."""

from dataclasses import replace
from typing import Any

import pytest

from echorl_manifest.models.run import EchoRLRunSpec
from echorl_operator.children.target import owner_reference
from echorl_operator.observed.records import ChildRecord, Kind
from echorl_operator.plan.actions import Action, ChangeOwner
from echorl_operator.plan.builder import PlanBuilder
from echorl_operator.plan.planning import _goes_on
from echorl_operator.plan.retention import ensure_owner
from echorl_testing.operator.observed_worlds import RUN_UID, meta, observed, run
from echorl_testing.operator.rendered import SETTINGS, manifest, rendered

OWNED = ChildRecord(Kind.CLAIM, meta("one-volume"), b"{}")
FREE = replace(OWNED, meta=replace(OWNED.meta, owner_uid=""))


def actions(claim: ChildRecord | None, **storage: Any) -> list[Action]:
    record = run(storage=storage)
    builder = PlanBuilder(observed(children=(claim,) if claim else (), run=record), SETTINGS, "a token")
    ensure_owner(builder, EchoRLRunSpec.model_validate(record.spec))
    return builder.actions


def change(*, owned: bool) -> ChangeOwner:
    owner = owner_reference("one", RUN_UID)
    return ChangeOwner("v1", "PersistentVolumeClaim", "one-volume", "uid-one-volume", owner, owned=owned)


@pytest.mark.parametrize(
    ("claim", "storage", "expected"),
    [
        (OWNED, {"retain": True}, [change(owned=False)]),
        (OWNED, {}, [change(owned=False)]),
        (FREE, {"retain": False}, [change(owned=True)]),
        (OWNED, {"retain": False}, []),
        (FREE, {"retain": True}, []),
        (None, {"retain": False}, []),
        (FREE, {"retain": False, "claimName": "mine"}, []),
        (replace(OWNED, meta=replace(OWNED.meta, owner_uid="another")), {"retain": False}, []),
        (replace(FREE, meta=replace(FREE.meta, deleted_at=1.0)), {"retain": False}, []),
    ],
)
def test_the_claims_owner_is_as_the_manifest_says(
    claim: ChildRecord | None, storage: dict[str, Any], expected: list[Action]
) -> None:
    assert actions(claim, **storage) == expected


@pytest.mark.parametrize(
    ("edit", "goes_on"),
    [
        ({"storage": {"retain": False}}, False),
        ({"ttlSecondsAfterFinished": 60}, False),
        ({"storage": {"retain": False}, "ttlSecondsAfterFinished": 60}, False),
        ({"storage": {"retain": False}, "maxSteps": 99}, True),
        ({"failurePolicy": {"maxRestarts": 9}}, True),
        # By an autoscaler, which knows nothing of the run; and back.
        ({"inference": {"replicas": 4, "gpusPerReplica": 0, "tensorParallel": 1}}, False),
        ({"inference": {"replicas": 4, "gpusPerReplica": 1, "tensorParallel": 1}}, True),
        ({}, False),
    ],
)
def test_an_edit_that_mends_nothing_does_not_start_a_failed_run_again(edit: dict[str, Any], goes_on: bool) -> None:
    rendering = rendered(manifest("quickstart"))
    record = replace(
        run({"phase": "Failed", "observedGeneration": 1}), generation=2, spec={**manifest("quickstart")["spec"], **edit}
    )
    builder = PlanBuilder(observed(run=record), SETTINGS, "a token")
    assert _goes_on(builder, EchoRLRunSpec.model_validate(record.spec), rendering) is goes_on


@pytest.mark.parametrize(("steps", "goes_on"), [(20, False), (21, True)])
def test_a_run_that_succeeded_goes_on_for_more_steps_alone(steps: int, goes_on: bool) -> None:
    status = {"phase": "Succeeded", "observedGeneration": 1, "step": 20}
    record = replace(run(status, maxSteps=steps, ttlSecondsAfterFinished=9), generation=2)
    builder = PlanBuilder(observed(run=record), SETTINGS, "a token")
    assert _goes_on(builder, EchoRLRunSpec.model_validate(record.spec), None) is goes_on
