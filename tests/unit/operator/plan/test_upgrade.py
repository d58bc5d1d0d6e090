"""An operator that takes over a run which an older version started, and is to change nothing of it until it must."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from echorl_core.names import Phase
from echorl_operator.observed.records import ChildRecord, Kind
from echorl_operator.observed.runs import RunRecord
from echorl_operator.observed.world import Observed
from echorl_operator.plan.actions import Apply, ChangeLive, Create, Delete
from echorl_operator.plan.planning import plan
from echorl_operator.settings import Settings
from echorl_testing.earlier import NoHistory, earlier
from echorl_testing.manifests.documents import shortest
from echorl_testing.operator.observed_worlds import run
from echorl_testing.operator.planned_worlds import SETTINGS, child, document, edited, running, status
from echorl_testing.operator.rendered import manifest

REPOSITORY = Path(__file__).parents[4]
RENDER = """
import json, sys
from echorl_manifest import load
from echorl_operator.children import common, inference_deployment, render, to_revision, trainer_set
from echorl_operator.settings import Settings
from echorl_operator import __file__ as here
assert here.startswith(sys.argv[1]), here
settings = Settings(operator_version="0.1.0", broker_url="http://broker")
made = []
for document in json.load(sys.stdin):
    loaded = load(document)
    rendering = render(loaded, uid="run-uid", namespace="ns", generation=1, settings=settings)
    sets = [trainer_set(rendering, 1, 2), inference_deployment(rendering, loaded.spec.inference.replicas)]
    made.append([*common(rendering), to_revision(rendering, loaded, 1, 1), *sets])
json.dump(made, sys.stdout)
"""
TAKE_OVER = """
import json, sys
from dataclasses import replace
from pathlib import Path
from echorl_core.names import Phase
from echorl_operator import __file__ as here
from echorl_operator.plan.planning import plan
from echorl_operator.settings import Settings
from echorl_testing.operator import planned_worlds as worlds
from echorl_testing.operator.observed_worlds import run
assert here.startswith(sys.argv[1]), here
settings = Settings(operator_version="0.1.0", broker_url="http://broker")
made = []
for spec, bodies in json.load(sys.stdin):
    record = replace(run(worlds.status(Phase.RUNNING)), spec=spec)
    seen = plan(worlds.running(record, children=tuple(map(worlds._child, bodies))), settings, "a token")
    made.append([seen.status["phase"], seen.status["attempt"], [type(action).__name__ for action in seen.actions]])
json.dump(made, sys.stdout)
"""
OF_THE_WORLD = {"ChangeOwner"}
"""Of the claim: in these worlds it is the run's, whatever the manifest says of it."""
NEWER = Settings(operator_version="0.2.0", broker_url="http://broker")
SPECS: dict[str, dict[str, Any]] = {
    "shortest": shortest()["spec"] | {"trainer": {"replicas": 2}},
    "two-pods": manifest("two-pods")["spec"],
    "sandboxes": shortest()["spec"] | {"trainer": {"replicas": 2}, "sandboxes": {"provider": "pod"}},
}


def record(spec: dict[str, Any]) -> RunRecord:
    return replace(run(status(Phase.RUNNING)), spec=spec)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The earlier version."""
    try:
        return earlier(tmp_path_factory.mktemp("earlier") / "tree", "core", "operator", "tests", "examples")
    except NoHistory as error:
        pytest.skip(str(error))


def told(tree: Path, script: str, given: Any) -> Any:
    """What a script says that runs in one version's code."""
    code = os.pathsep.join(str(tree / part) for part in ("core", "operator", "tests/support"))
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, str(tree)],
        input=json.dumps(given),
        env={**os.environ, "PYTHONPATH": code},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def rendered_earlier(tree: Path) -> dict[str, tuple[ChildRecord, ...]]:
    """What the earlier version made of each spec."""
    bodies = told(tree, RENDER, [document(record(spec)) for spec in SPECS.values()])
    return {name: tuple(map(child, made)) for name, made in zip(SPECS, bodies, strict=True)}


def world(name: str, rendered_earlier: dict[str, tuple[ChildRecord, ...]]) -> Observed:
    return running(record(SPECS[name]), children=rendered_earlier[name])


@pytest.mark.parametrize("settings", [SETTINGS, NEWER], ids=["images stay", "images change"])
@pytest.mark.parametrize("name", SPECS)
def test_a_new_operator_writes_no_child_of_a_run_that_trains(
    rendered_earlier: dict[str, tuple[ChildRecord, ...]], name: str, settings: Settings
) -> None:
    made = plan(world(name, rendered_earlier), settings, "a token")
    assert {type(action).__name__ for action in made.actions} <= OF_THE_WORLD
    assert (made.status["phase"], made.status["attempt"]) == ("Running", 1)


@pytest.mark.parametrize("edit", [{"inference": {"replicas": 3}}, {"maxSteps": 900}], ids=str)
def test_an_edit_that_applies_live_replaces_no_pod_by_one_of_the_new_version(
    rendered_earlier: dict[str, tuple[ChildRecord, ...]], edit: dict[str, Any]
) -> None:
    before = world("shortest", rendered_earlier)
    made = plan(replace(before, run=edited(before.run, **edit)), NEWER, "a token")
    (revision,) = [
        one.body for one in made.actions if isinstance(one, Create) and one.body["kind"] == "ControllerRevision"
    ]
    assert made.status["attempt"] == 1
    after = replace(
        before,
        run=replace(edited(before.run, **edit), status=made.status),
        children=(*before.children, child(revision)),
    )
    bodies = {one.kind: one.body.decode() for one in before.children}
    for action in plan(after, NEWER, "a token").actions:
        assert not isinstance(action, Delete)
        if isinstance(action, Apply) and action.body["kind"] in {"StatefulSet", "Deployment"}:
            assert template(json.dumps(action.body)) == template(bodies[Kind(action.body["kind"])])


def template(body: str) -> Any:
    """Of pods. The trainer's name their config, which says how many steps there are; those that run keep theirs."""
    return json.loads(re.sub("one-trainer-[0-9a-f]{10}", "config", body))["spec"]["template"]


def test_the_earlier_operator_writes_no_child_of_a_run_that_a_new_one_started(tree: Path) -> None:
    """As after a rollback."""
    bodies = told(REPOSITORY, RENDER, [document(record(spec)) for spec in SPECS.values()])
    given = list(zip(SPECS.values(), bodies, strict=True))
    for phase, attempt, actions in told(tree, TAKE_OVER, given):
        assert (phase, attempt) == ("Running", 1)
        assert set(actions) <= OF_THE_WORLD


def test_a_run_whose_rendering_holds_what_only_a_newer_version_knows_is_told_and_left_alone() -> None:
    """As after a rollback, of a run whose manifest names a new field."""
    spec = shortest()["spec"] | {"trainer": {"replicas": 2}}
    newer = {**spec, "maxSteps": 900, "fieldOfTomorrow": 1}
    before = running(record(spec))
    (frozen,) = [one for one in before.children if one.kind is Kind.REVISION]
    body = json.loads(frozen.body)
    body["data"]["rendering"]["spec"]["fieldOfTomorrow"] = 1
    kept = tuple(one for one in before.children if one is not frozen)
    made = plan(replace(before, run=record(newer), children=(*kept, child(body))), SETTINGS, "a token")
    assert made.actions == ()
    assert (made.status["phase"], made.status["attempt"]) == ("Running", 1)
    (invalid,) = [one for one in made.status["conditions"] if one["type"] == "InvalidSpec"]
    assert invalid["status"] == "True"
    assert "fieldOfTomorrow" in invalid["message"]
    assert "rendered by another version" in made.status["message"]


def test_an_edit_that_only_a_newer_version_can_send_waits_and_stops_nothing_else() -> None:
    before = running(record(SPECS["shortest"]))
    (frozen,) = [one for one in before.children if one.kind is Kind.REVISION]
    body = json.loads(frozen.body)
    rendering = body["data"]["rendering"]
    rendering["generation"] = 2
    (config,) = [one for one in rendering["common"] if "orchestrator.json" in one.get("data", {})]
    config["data"]["orchestrator.json"] = json.dumps({"field_of_tomorrow": 1})
    kept = tuple(one for one in before.children if one is not frozen)
    made = plan(replace(before, children=(*kept, child(body))), SETTINGS, "a token")
    assert not any(isinstance(one, ChangeLive | Delete) for one in made.actions)
    assert made.status["phase"] == "Running"
    assert "wait for an attempt" in made.status["message"]
