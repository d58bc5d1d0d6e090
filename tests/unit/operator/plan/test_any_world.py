"""Whatever pods, people, nodes and orchestrators do, a pass decides: it raises nothing, and holds to its fences.

A plan that raises leaves its run to nobody: no restart, no suspension, no word of why.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echorl_cli.cluster.sentence import sentence
from echorl_core.names import ExitCode, Phase
from echorl_core.termination_message import encoded, message_of_end
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ContainerPhase, ContainerRecord, PodPhase, PodRecord
from echorl_operator.observed.roles import Checkpoint, EngineState
from echorl_operator.plan.actions import LiftGate
from echorl_testing import campaign
from echorl_testing.operator.imagined_cluster import ImaginedCluster
from echorl_testing.operator.observed_worlds import NOW, container

CODES = st.sampled_from([*(int(code) for code in ExitCode), 1, 42, 128, 137, 143, 255])
TEXTS = st.sampled_from(["", "x", "Error", "OOMKilled", "StartError", "Evicted", "NodeLost", "CrashLoopBackOff", "{}"])
TIMES = st.one_of(st.none(), st.floats(NOW - 4000.0, NOW + 4000.0))


@st.composite
def containers(draw: st.DrawFn, name: str, *, deep: bool = True) -> ContainerRecord:
    code = draw(CODES)
    said = encoded(message_of_end(name, code, draw(TEXTS), attempt=draw(st.integers(0, 3)))).decode()
    return container(
        draw(st.sampled_from([name, "sidecar"])),
        draw(st.sampled_from(ContainerPhase)),
        reason=draw(TEXTS),
        message=draw(st.one_of(TEXTS, st.just(said))),
        exit_code=draw(st.one_of(st.none(), st.just(code))),
        signal=draw(st.sampled_from([None, 9])),
        restarts=draw(st.integers(0, 3)),
        ready=draw(st.booleans()),
        since=draw(TIMES),
        last=draw(st.one_of(st.none(), containers(name, deep=False))) if deep else None,
    )


@st.composite
def changed(draw: st.DrawFn, pod: PodRecord) -> PodRecord:
    """The same pod, in any condition."""
    role = str(pod.role or PodRole.TRAINER)
    fields: dict[str, st.SearchStrategy[Any]] = {
        "attempt": st.integers(0, 3),
        "phase": st.sampled_from(PodPhase),
        "reason": TEXTS,
        "message": TEXTS,
        "gated": st.booleans(),
        "node": st.sampled_from(["", "node-1"]),
        "ip": st.sampled_from(["", "10.0.0.9"]),
        "unscheduled": st.sampled_from(["", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", "?"]),
        "ready": st.booleans(),
        "ready_since": TIMES,
        "disrupted": st.sampled_from(["", "EvictionByEvictionAPI"]),
        "containers": st.lists(containers(role), max_size=2).map(tuple),
        "meta": TIMES.map(lambda at: replace(pod.meta, deleted_at=at)),
        "role": st.sampled_from([pod.role, None]),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(fields)), min_size=1, max_size=5))
    return replace(pod, **{name: draw(fields[name]) for name in sorted(chosen)})


EDITS: list[dict[str, Any]] = [
    {"suspend": True},
    {"suspend": False},
    {"suspend": None},
    {"maxSteps": 40},
    {"maxSteps": 1},
    {"algorithm": None},
    {"algorithm": {"batchSize": 65}},
    {"failurePolicy": None},
    {"failurePolicy": {"maxRestarts": 0}},
    {
        "failurePolicy": {
            "forceDeleteOnNodeLoss": True,
            "rules": [{"role": "trainer", "exitCodes": [1], "action": "Fail"}],
        }
    },
    {"failurePolicy": {"rules": [{"role": "inference", "exitCodes": [1, 2], "action": "Ignore"}]}},
    {"resume": {"policy": "FromStep", "step": 5}},
    {"resume": {"policy": "Never", "onExisting": "Archive"}},
    {"stallPolicy": {"noStepFor": "1m", "action": "Fail"}},
    {"stallPolicy": {"noStepFor": "1m", "action": "Ignore"}},
    {"activeDeadlineSeconds": 100},
    {"ttlSecondsAfterFinished": 10},
    {"inference": {"replicas": 3, "gpusPerReplica": 0}},
    {"trainer": {"replicas": 1, "gpusPerReplica": 0}},
    {"trainer": 5},
]


@st.composite
def sayings(draw: st.DrawFn) -> dict[str, Any]:
    engine = EngineState("10.0.0.9:8000", draw(st.sampled_from(["serving", "quarantined", "lost", "?"])), None, "x")
    return {
        "phase": draw(st.sampled_from([Phase.RUNNING, Phase.STARTING, Phase.SUCCEEDED, Phase.FAILED])),
        "step": draw(st.sampled_from([None, 0, 1, 7, 10_000])),
        "staleness_max": draw(st.sampled_from([None, 0, 9])),
        "checkpoint": draw(st.sampled_from([None, Checkpoint(5, "2026-01-01T00:00:00Z", 9)])),
        "abandoned": draw(st.sampled_from(["", "no room"])),
        "engines": draw(st.sampled_from([(), (engine,)])),
        "failure_code": draw(st.one_of(st.none(), CODES)),
        "failure_message": "x",
        "last_step_at": NOW - draw(st.sampled_from([0.0, 5000.0])),
    }


def to_pods(data: st.DataObject, cluster: ImaginedCluster) -> None:
    if cluster.pods:
        name = data.draw(st.sampled_from(sorted(cluster.pods)), "pod")
        becomes = data.draw(st.one_of(st.none(), changed(cluster.pods[name])), "becomes")
        del cluster.pods[name]
        if becomes is not None:
            cluster.pods[name] = becomes


def to_prepare(data: st.DataObject, cluster: ImaginedCluster) -> None:
    """It is over within a pass, so that nothing else happens to it by chance."""
    for _ in range(6):
        if found := [name for name, one in cluster.pods.items() if one.role is PodRole.PREPARE]:
            becomes = data.draw(changed(cluster.pods[found[-1]]), "prepare becomes")
            phase = data.draw(st.sampled_from([becomes.phase, PodPhase.FAILED]), "in phase")
            cluster.pods[found[-1]] = replace(becomes, phase=phase)
            return
        cluster.step()


def to_children(data: st.DataObject, cluster: ImaginedCluster) -> None:
    if cluster.children:
        del cluster.children[data.draw(st.sampled_from(sorted(cluster.children)), "child is gone")]


def by_the_user(data: st.DataObject, cluster: ImaginedCluster) -> None:
    cluster.edit(**data.draw(st.sampled_from(EDITS), "edit"))


def by_the_orchestrator(data: st.DataObject, cluster: ImaginedCluster) -> None:
    said = data.draw(st.one_of(st.none(), sayings()), "the orchestrator says")
    if said is None:
        cluster.state = None
    elif "attempt" in cluster.status:
        cluster.say(**said)


def in_time(data: st.DataObject, cluster: ImaginedCluster) -> None:
    cluster.now += data.draw(st.sampled_from([1.0, 31.0, 400.0, 4000.0]), "seconds pass")


def to_the_run(data: st.DataObject, cluster: ImaginedCluster) -> None:
    if data.draw(st.booleans(), "deleted"):
        cluster.run = replace(cluster.run, deleted_at=cluster.now)
    else:
        cluster.run = replace(cluster.run, status={})


OFTEN: list[Callable[[st.DataObject, ImaginedCluster], None]] = [to_pods, by_the_user, by_the_orchestrator, in_time]
HAPPENINGS = [*OFTEN, *OFTEN, *OFTEN, to_prepare, to_prepare, to_children, to_the_run]


@campaign.SAMPLED
@settings(max_examples=25)
@given(st.data())
def test_a_pass_decides_in_any_world(data: st.DataObject) -> None:
    live(data)


@campaign.ALL
@pytest.mark.timeout(1800)
@settings(max_examples=4000)
@given(st.data())
def test_a_pass_decides_in_any_of_many_worlds(data: st.DataObject) -> None:
    live(data)


def live(data: st.DataObject) -> None:
    """One life of a run in which anything may happen; every pass decides."""
    cluster = ImaginedCluster(failurePolicy={"backoffSeconds": data.draw(st.sampled_from([0, 10]), "back-off")})
    if data.draw(st.booleans(), "begun"):
        cluster.begin()
    for _ in range(data.draw(st.integers(1, 12), "happenings")):
        data.draw(st.sampled_from(HAPPENINGS))(data, cluster)
        gates = {name: one for name, one in cluster.pods.items() if one.gated}
        made = cluster.step()
        for action in made.actions:
            if isinstance(action, LiftGate):
                assert gates[action.name].attempt == made.status["attempt"], "of the current attempt alone"
        if cluster.run.deleted_at is not None:
            return
        assert made.status["message"] or made.status["phase"] in ("Running", "Succeeded"), made.status
        assert made.wake_after_s is None or made.wake_after_s >= 0.0
        sentence(cluster.world())
