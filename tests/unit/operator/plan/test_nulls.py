"""A null stands for a key that is left out, wherever the schema takes one: whatever pass meets it."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from echorl_cli.yaml_text import parse_yaml
from echorl_core.last_words import Preparation, encoded, words_of
from echorl_core.names import Phase
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ContainerPhase, PodPhase
from echorl_operator.observed.runs import RunRecord
from echorl_operator.observed.world import Observed
from echorl_testing.campaign import campaign_params
from echorl_testing.observed_worlds import NOW, container, ended, observed, pod, run
from echorl_testing.planned_worlds import (
    children,
    edited,
    gang,
    orchestrator,
    planned,
    running,
    state,
    status,
)

CRD = Path(__file__).parents[4] / "crds/echorlruns.yaml"
LONG_AGO = NOW - 90.0

Place = tuple[str, ...]


def nullable(node: dict[str, Any], path: Place = ()) -> Iterator[Place]:
    """Blocks, objects and lists, that may be null; ``[]`` stands for the first item of a list."""
    for key, inner in node.get("properties", {}).items():
        if inner.get("nullable") and inner.get("type") in ("object", "array"):
            yield (*path, key)
        yield from nullable(inner, (*path, key))
    if "items" in node:
        yield from nullable(node["items"], (*path, "[]"))


SPEC = parse_yaml(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
PATHS = list(nullable(SPEC))


def put(spec: dict[str, Any], path: Place, *, null: bool) -> dict[str, Any]:
    """The spec with null at the path, or with nothing there."""
    spec = copy.deepcopy(spec)
    node: Any = spec
    for key, following in pairwise(path):
        if key == "[]":
            node = node[0]
        elif following == "[]":
            node[key] = node.get(key) or [{"name": "held-out", "type": "builtin:digits", "interval": 5}]
            node = node[key]
        else:
            node = node.setdefault(key, {})
    if null:
        node[path[-1]] = None
    else:
        node.pop(path[-1], None)
    return spec


def begins(record: RunRecord, _: RunRecord) -> Observed:
    return observed(run=record)


def prepares(record: RunRecord, whole: RunRecord) -> Observed:
    done = Preparation(resume_step=25, model_path="/m")
    said = encoded(msgspec.structs.replace(words_of("prepare", 0, "done", attempt=1), prepared=done)).decode()
    main = container("prepare", ContainerPhase.TERMINATED, exit_code=0, message=said)
    one = pod("one-prepare-1", PodRole.PREPARE, phase=PodPhase.SUCCEEDED, containers=(main,))
    before = status(Phase.PREPARING, checkpoint={"step": 50})
    return observed(one, run=replace(record, status=before), children=children(whole))


def waits_for_a_lost_node(record: RunRecord, whole: RunRecord) -> Observed:
    hung = gang(1, deleted_at=LONG_AGO)
    return observed(*hung, run=replace(record, status=status(Phase.PREPARING, 2)), children=children(whole, 2))


def trains(record: RunRecord, whole: RunRecord) -> Observed:
    return running(replace(record, status=status(Phase.RUNNING)), children=children(whole))


def is_blocked(record: RunRecord, whole: RunRecord) -> Observed:
    unbound = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    waiting = gang(phase=PodPhase.PENDING, unscheduled=unbound, ready=False, containers=())
    starting = replace(record, status=status(Phase.STARTING))
    return observed(*waiting, run=starting, children=children(whole))


def loses_a_rank(record: RunRecord, whole: RunRecord) -> Observed:
    crashed = ended("one-trainer-1", PodRole.TRAINER, 1, index=1)
    known = replace(record, status=status(Phase.RUNNING))
    return observed(gang()[0], crashed, orchestrator(), run=known, children=children(whole), role_state=state())


def has_failed(record: RunRecord, whole: RunRecord) -> Observed:
    hung = orchestrator(deleted_at=LONG_AGO)
    return observed(hung, run=replace(record, status=status(Phase.FAILED)), children=children(whole))


def was_edited(record: RunRecord, whole: RunRecord) -> Observed:
    return replace(trains(record, whole), run=edited(replace(record, status=status(Phase.RUNNING)), maxSteps=999))


WORLDS = [begins, prepares, waits_for_a_lost_node, trains, is_blocked, loses_a_rank, has_failed, was_edited]


def test_the_schema_says_which_blocks_may_be_null() -> None:
    assert {("algorithm",), ("failurePolicy",), ("resume",), ("environments", "train", "[]", "sampling")} <= set(PATHS)


CASES = [pytest.param(world, path, id=f"{world.__name__}-{'.'.join(path)}") for world in WORLDS for path in PATHS]


@pytest.mark.parametrize(("world", "path"), campaign_params("nulls", CASES, 120))
def test_a_null_block_is_planned_as_one_that_is_left_out(
    world: Callable[[RunRecord, RunRecord], Observed], path: Place
) -> None:
    whole = run()
    specs = (put(whole.spec, path, null=null) for null in (True, False))
    null, left_out = (planned(world(replace(whole, spec=spec), whole)) for spec in specs)
    assert null.status == left_out.status
    assert null.actions == left_out.actions
