"""An operator that takes over a run which an older version started, and is to change nothing of it until it must."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from echorl_core.names import Phase
from echorl_operator.observed.records import ChildRecord, Kind
from echorl_operator.observed.runs import RunRecord
from echorl_operator.observed.world import Observed
from echorl_operator.plan.actions import Apply, Create, Delete
from echorl_operator.plan.planning import plan
from echorl_operator.settings import Settings
from echorl_testing.earlier import NoHistory, earlier
from echorl_testing.manifests.documents import shortest
from echorl_testing.operator.observed_worlds import run
from echorl_testing.operator.planned_worlds import SETTINGS, child, document, edited, running, status
from echorl_testing.operator.rendered import manifest

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
NEWER = Settings(operator_version="0.2.0", broker_url="http://broker")
SPECS: dict[str, dict[str, Any]] = {
    "shortest": shortest()["spec"] | {"trainer": {"replicas": 2}},
    "two-pods": manifest("two-pods")["spec"],
    "sandboxes": shortest()["spec"] | {"trainer": {"replicas": 2}, "sandboxes": {"provider": "pod"}},
}


def record(spec: dict[str, Any]) -> RunRecord:
    return replace(run(status(Phase.RUNNING)), spec=spec)


@pytest.fixture(scope="module")
def rendered_earlier(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ChildRecord, ...]]:
    """What the earlier version's own code made of each spec."""
    try:
        tree = earlier(tmp_path_factory.mktemp("earlier") / "tree", "core", "operator")
    except NoHistory as error:
        pytest.skip(str(error))
    documents = json.dumps([document(record(spec)) for spec in SPECS.values()])
    done = subprocess.run(
        [sys.executable, "-P", "-c", RENDER, str(tree)],
        input=documents,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(tree / part) for part in ("core", "operator"))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = (tuple(map(child, bodies)) for bodies in json.loads(done.stdout))
    return dict(zip(SPECS, made, strict=True))


def world(name: str, rendered_earlier: dict[str, tuple[ChildRecord, ...]]) -> Observed:
    return running(record(SPECS[name]), children=rendered_earlier[name])


@pytest.mark.parametrize("settings", [SETTINGS, NEWER], ids=["images stay", "images change"])
@pytest.mark.parametrize("name", SPECS)
def test_a_new_operator_writes_no_child_of_a_run_that_trains(
    rendered_earlier: dict[str, tuple[ChildRecord, ...]], name: str, settings: Settings
) -> None:
    made = plan(world(name, rendered_earlier), settings, "a token")
    writes = [
        one
        for one in made.actions
        if isinstance(one, Apply | Delete) or (isinstance(one, Create) and one.body["kind"] != "Secret")
    ]
    assert writes == []
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
