"""How many sandboxes of a run are kept ready, and what a claim changes: numbers by hand."""

from dataclasses import replace
from typing import Any

import pytest

from echorl_broker.profile import claim, shape_of
from echorl_broker.runs import keeps_warm, most_warm
from echorl_core.wire.sandboxes import Limits, Wanted
from echorl_manifest.models.sandboxes import Sandboxes
from echorl_operator.observed.records import Meta
from echorl_operator.observed.runs import RunRecord
from echorl_testing.operator.observed_worlds import run

WANTED = Wanted(
    run_uid="u",
    image="task:1",
    workdir="/task",
    limits=Limits(cpu=1, memory_bytes=1 << 28, disk_bytes=1 << 28),
    ttl_s=600.5,
)
META = Meta("ns", "one", "uid-1", "7", 0, "u", "u", created_at=1000.0, deleted_at=None)


def of(replicas: int, algorithm: dict[str, Any], step: int = 0, **spec: Any) -> tuple[RunRecord, Sandboxes]:
    sandboxes = {"provider": "pod", "warmReplicas": replicas, "concurrency": 3}
    seen = run({"phase": "Running", "step": step}, sandboxes=sandboxes, **spec)
    return replace(seen, spec={**seen.spec, "algorithm": algorithm}), Sandboxes.model_validate(sandboxes)


@pytest.mark.parametrize(
    ("replicas", "algorithm", "step", "most"),
    [
        (1000, {}, 0, 256),
        (4, {"groupSize": 8, "batchSize": 32}, 0, 4),
        (100, {"groupSize": 8, "batchSize": 32}, 0, 32),
        (100, {"groupSize": 8}, 0, 100),
        (1000, {"groupSize": 8}, 0, 128),
        (100, {"batchSize": 10, "oversampling": 1.25}, 0, 13),
        (100, {"batchSize": 10, "oversampling": 1.25}, 9, 10),
        (100, {"batchSize": 10}, 10, 0),
        (100, {"batchSize": 10}, 11, 0),
        (100, {"tokenBatchSize": 1000}, 0, 3),
    ],
)
def test_no_more_are_kept_than_are_to_come(replicas: int, algorithm: dict[str, Any], step: int, most: int) -> None:
    assert most_warm(*of(replicas, algorithm, step, maxSteps=10)) == most


def test_only_pods_are_kept() -> None:
    assert keeps_warm(of(1, {})[0])
    assert not keeps_warm(of(0, {})[0])
    assert keeps_warm(run({}, sandboxes={"provider": "agent-sandbox", "warmReplicas": 3}))
    assert not keeps_warm(run({}, sandboxes={"provider": "process", "warmReplicas": 3}))


def test_a_claim_names_the_pod_as_it_was_seen_and_begins_its_time() -> None:
    change = claim(META, "k", WANTED.ttl_s, now=1100.25)
    assert change["metadata"].items() >= {"uid": "uid-1", "resourceVersion": "7"}.items()
    assert change["spec"] == {"activeDeadlineSeconds": 101 + 601}
    assert change["metadata"]["annotations"]["echorl.dev/sandbox-ttl-seconds"] == "702"


def test_all_that_a_sandbox_is_made_by_is_in_its_shape() -> None:
    limits = Limits(cpu=1, memory_bytes=1 << 28, disk_bytes=1 << 29)
    others = [{"image": "b"}, {"workdir": "/b"}, {"ttl_s": 1.0}, {"gateway": True}, {"limits": limits}]
    shapes = {shape_of(Wanted(**{**_fields(WANTED), **other})) for other in others}
    assert len(shapes | {shape_of(WANTED)}) == 6
    assert shape_of(Wanted(**_fields(WANTED))) == shape_of(WANTED)


def _fields(wanted: Wanted) -> dict[str, Any]:
    return {name: getattr(wanted, name) for name in wanted.__struct_fields__}
