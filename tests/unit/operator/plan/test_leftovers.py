"""What earlier renderings left goes; what is not the run's own never does."""

import json
from dataclasses import replace
from typing import Any

import pytest

from echorl_manifest import load
from echorl_operator import names
from echorl_operator.children import Rendering
from echorl_operator.children.revision import to_revision
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ChildRecord, Kind, PodRecord
from echorl_operator.plan import leftovers
from echorl_operator.plan.actions import Create, Delete
from echorl_operator.plan.builder import PlanBuilder
from echorl_operator.settings import Settings
from echorl_testing.operator.observed_worlds import NOW, meta, observed, pod, run
from echorl_testing.operator.rendered import SETTINGS, manifest, rendered

CURRENT = "one-3-5"
ENGINES = ChildRecord(
    Kind.DEPLOYMENT, meta(names.inference("one")), b"{}", observed_generation=1, desired=2, replicas=2, updated=2
)


def rendering(steps: int, settings: Settings = SETTINGS, **spec: Any) -> Rendering:
    document = manifest("quickstart")
    document["metadata"]["name"] = "one"
    document["spec"] |= {"maxSteps": steps, **spec}
    return rendered(document, settings=settings)


NOW_RENDERED = rendering(30)


def revision(name: str, of: Rendering = NOW_RENDERED, *, made: float = 0.0, **changes: Any) -> ChildRecord:
    attempt, generation = (int(part) for part in name.split("-")[1:])
    document = {"apiVersion": "echorl.dev/v1alpha1", "kind": "EchoRLRun", "metadata": {"name": "one"}, "spec": of.spec}
    body = to_revision(of, load(document), attempt, generation)
    return ChildRecord(Kind.REVISION, replace(meta(name), created_at=NOW + made, **changes), json.dumps(body).encode())


def children_of(of: Rendering, made: float, *kinds: Kind) -> dict[str, ChildRecord]:
    found = [body for body in of.common if body["kind"] in kinds]
    named = {body["metadata"]["name"]: Kind(body["kind"]) for body in found}
    return {name: ChildRecord(kind, replace(meta(name), created_at=NOW + made), b"{}") for name, kind in named.items()}


def deleted(
    *children: ChildRecord,
    pods: tuple[PodRecord, ...] = (),
    of: Rendering = NOW_RENDERED,
    engines: ChildRecord | None = ENGINES,
    **status: Any,
) -> list[str]:
    """Names of what is deleted in attempt 3."""
    fields = {"phase": "Running", "attempt": 3, "revision": CURRENT, "control": {"preparedAttempt": 3}, **status}
    world = observed(*pods, children=(*children, *([engines] if engines else [])), run=run(fields))
    builder = PlanBuilder(world, SETTINGS, "a token")
    leftovers.remove(builder, of)
    assert all(isinstance(one, Delete) and one.uid == f"uid-{one.name}" for one in builder.actions)
    return [one.name for one in builder.actions if isinstance(one, Delete)]


def test_revisions_of_this_attempts_ends_and_of_the_one_before_stay() -> None:
    found = ["one-1-1", "one-1-2", "one-2-2", "one-2-3", "one-3-3", "one-3-4", CURRENT]
    assert deleted(*(revision(name) for name in found)) == ["one-1-1", "one-1-2", "one-2-2", "one-3-4"]


def test_attempts_are_counted_as_numbers() -> None:
    found = ["one-9-9", "one-10-10", "one-2-2", "one-11-11"]
    status = {"attempt": 11, "revision": "one-11-11", "control": {"preparedAttempt": 11}}
    assert deleted(*(revision(name) for name in found), **status) == ["one-2-2", "one-9-9"]


def test_a_revision_of_a_later_attempt_stays() -> None:
    assert deleted(revision(CURRENT), revision("one-4-5")) == []


@pytest.mark.parametrize(
    "stranger",
    [
        revision("one-1-1", owner_uid=""),
        revision("one-1-1", owner_uid="another"),
        ChildRecord(Kind.REVISION, meta("one-trainer-7d4f"), b"{}"),
        ChildRecord(Kind.REVISION, replace(meta("one-trainer-1-1"), owner_uid="uid-one-trainer"), b"{}"),
        ChildRecord(Kind.CONFIG_MAP, replace(meta("one-trainer-old"), owner_uid=""), b"{}"),
        ChildRecord(Kind.NETWORK_POLICY, replace(meta("one-mine"), owner_uid=""), b"{}"),
    ],
)
def test_what_the_run_does_not_control_stays(stranger: ChildRecord) -> None:
    assert deleted(stranger, revision("one-2-2"), revision(CURRENT)) == []


def test_config_maps_of_kept_renderings_stay() -> None:
    oldest, before, first = rendering(10), rendering(20), rendering(25)
    maps = {
        **children_of(oldest, -90, Kind.CONFIG_MAP),
        **children_of(before, -60, Kind.CONFIG_MAP),
        **children_of(first, -30, Kind.CONFIG_MAP),
        **children_of(NOW_RENDERED, -10, Kind.CONFIG_MAP),
    }
    revisions = revision("one-2-2", before), revision("one-3-4", first), revision(CURRENT)
    kept = {name for one in (before, first, NOW_RENDERED) for name in children_of(one, 0, Kind.CONFIG_MAP)}
    gone = deleted(*revisions, *maps.values())
    assert "one-orchestrator" in {name.rpartition("-")[0] for name in gone}
    assert set(gone) == set(maps) - kept


def test_a_config_map_that_was_made_since_the_attempt_began_stays() -> None:
    between = children_of(rendering(27), -20, Kind.CONFIG_MAP)
    assert deleted(revision("one-3-4", made=-30), revision(CURRENT), *between.values()) == []
    between = children_of(rendering(27), -40, Kind.CONFIG_MAP)
    assert deleted(revision("one-3-4", made=-30), revision(CURRENT), *between.values()) != []


def test_a_rendering_that_cannot_be_read_keeps_its_config_maps() -> None:
    unknown = replace(revision("one-2-2"), body=b'{"data": {"format": 99}}')
    maps = children_of(rendering(10), -90, Kind.CONFIG_MAP)
    assert deleted(unknown, revision(CURRENT), *maps.values()) == []


@pytest.mark.parametrize(
    ("kind", "before", "now", "expected"),
    [
        (
            Kind.DISRUPTION_BUDGET,
            rendering(30, SETTINGS.model_copy(update={"disruption_budgets": True})),
            NOW_RENDERED,
            ["one-orchestrator", "one-trainer"],
        ),
        (Kind.NETWORK_POLICY, NOW_RENDERED, rendering(30, weightTransfer={"mode": "disk"}), ["one-trainer-0"]),
    ],
)
def test_what_acts_on_pods_goes_with_the_manifest_that_wanted_it(
    kind: Kind, before: Rendering, now: Rendering, expected: list[str]
) -> None:
    there = children_of(before, -90, kind).values()
    assert sorted(deleted(revision("one-2-2", before), revision(CURRENT, now), *there, of=now)) == expected


OLD = (revision("one-1-1"), revision("one-2-2"), revision(CURRENT))


@pytest.mark.parametrize(
    "unsettled",
    [
        {"control": {}},
        {"engines": None},
        {"engines": replace(ENGINES, updated=1)},
        {"engines": replace(ENGINES, replicas=3)},
        {"engines": replace(ENGINES, desired=3)},
        {"engines": replace(ENGINES, observed_generation=0)},
        {"pods": (pod("one-trainer-0", PodRole.TRAINER, attempt=2, deleted_at=NOW),)},
        {"pods": (pod("one-orchestrator", PodRole.ORCHESTRATOR, attempt=2),)},
        {"phase": "Succeeded", "pods": (pod("one-inference-x", PodRole.INFERENCE, attempt=0),)},
        {"phase": "Suspended", "pods": (pod("one-trainer-0", PodRole.TRAINER, attempt=3),)},
    ],
)
def test_nothing_goes_while_pods_may_need_it(unsettled: dict[str, Any]) -> None:
    assert deleted(*OLD) == ["one-1-1"]
    assert deleted(*OLD, **unsettled) == []


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Suspended"])
def test_without_pods_it_goes_after_the_end_too(phase: str) -> None:
    assert deleted(*OLD, phase=phase, control={}, engines=None) == ["one-1-1"]


def test_a_pass_that_has_something_else_to_do_deletes_nothing() -> None:
    fields = {"phase": "Running", "attempt": 3, "revision": CURRENT, "control": {"preparedAttempt": 3}}
    busy = PlanBuilder(observed(children=(*OLD, ENGINES), run=run(fields)), SETTINGS, "a token")
    busy.do(Create({}))
    leftovers.remove(busy, NOW_RENDERED)
    assert len(busy.actions) == 1
    fenced = PlanBuilder(observed(children=(*OLD, ENGINES), run=run(fields)), SETTINGS, "a token")
    fenced.fenced()
    leftovers.remove(fenced, NOW_RENDERED)
    assert not fenced.actions
