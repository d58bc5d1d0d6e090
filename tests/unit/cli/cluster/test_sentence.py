from typing import Any

import pytest

from echorl_cli.cluster.evidence import evidence, short_of
from echorl_cli.cluster.sentence import sentence
from echorl_operator.diagnosis.capacity import Node, rooms
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ContainerPhase, PodPhase, PodRecord
from echorl_operator.observed.times import to_text
from echorl_operator.observed.warning_events import EventSubject, WarningEvent
from echorl_testing.operator.observed_worlds import NOW, container, ended, meta, observed, pod, run

GPU = "nvidia.com/gpu"


def status(phase: str, message: str = "", **more: Any) -> dict[str, Any]:
    timeline = [{"phase": phase, "since": to_text(NOW - 250), "attempt": 1, "reason": "x"}]
    return {"phase": phase, "message": message, "attempt": 1, "timeline": timeline, **more}


def unscheduled() -> PodRecord:
    lacks = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    return pod(
        "one-trainer-1",
        PodRole.TRAINER,
        phase=PodPhase.PENDING,
        ready=False,
        unscheduled=lacks,
        node="",
        containers=(),
        wants=((GPU, "8"),),
        meta=meta("one-trainer-1", created_at=NOW - 250),
    )


def failed(message: str) -> dict[str, Any]:
    return {"type": "Failed", "status": "True", "reason": "NonFinite", "message": message}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (status("Running", "training", step=7), "one runs since 4 min 10 s, step 7: training"),
        (status("Failed", "x", conditions=[failed("step 3: NaN")]), "one has failed: NonFinite: step 3: NaN"),
        (status("Suspended", "by spec.suspend"), "one is suspended: by spec.suspend"),
        (
            status("Running", "no step for 99 s", conditions=[{"type": "Stalled", "status": "True"}]),
            "one waits: no step for 99 s",
        ),
        (status("Preparing", "choosing"), "one is being prepared since 4 min 10 s: choosing"),
    ],
)
def test_runs_with_nothing_in_their_way(told: dict[str, Any], expected: str) -> None:
    assert sentence(observed(run=run(told))) == expected


def test_what_is_seen_now_counts_more_than_what_status_says() -> None:
    world = observed(unscheduled(), run=run(status("Starting", "old words")))
    assert sentence(world) == (
        "one waits: one-trainer-1 cannot be scheduled: 8 nvidia.com/gpu wanted; of 2 nodes, "
        "2 have too little nvidia.com/gpu free; waiting 4 min"
    )
    said = sentence(world, figures=lambda resource, wanted: f"{wanted} {resource} wanted, 3 free on 2 nodes")
    assert said == (
        "one waits: one-trainer-1 cannot be scheduled: 8 nvidia.com/gpu wanted, 3 free on 2 nodes; waiting 4 min"
    )
    running = observed(unscheduled(), run=run(status("Running", "old words")))
    assert sentence(running).startswith("one runs, but one-trainer-1 cannot be scheduled")
    assert sentence(world, not_looking="nobody looks").startswith("nobody looks. Besides, one-trainer-1 cannot")


def test_sandboxes_are_told_from_their_pods_and_from_what_the_operator_heard() -> None:
    lacks = "0/2 nodes are available: 2 Insufficient cpu."
    lone = pod("s", None, phase=PodPhase.PENDING, ready=False, unscheduled=lacks, node="", containers=())
    waiting = [
        {"reason": "QuotaExceeded", "count": 4, "message": "exceeded quota: few"},
        {"reason": "Unschedulable", "count": 9, "message": "of a moment ago"},
    ]
    told = status("Running", "training", sandboxes={"waiting": waiting, "lost": {"evicted": 2}})
    world = observed(run=run(told, sandboxes={"provider": "pod"}), sandboxes=(lone,))
    says = "1 sandbox cannot be scheduled: of 2 nodes, 2 have too little cpu free"
    assert sentence(world) == f"one runs, but {says}; waiting 1 min"
    assert [str(one) for one in evidence(world, {}, [], [])] == [
        "sandboxes: 0 alive, 0 starting; lost so far: evicted 2",
        f"sandboxes: Unschedulable: {says}",
        "sandboxes: QuotaExceeded: 4 wait: exceeded quota: few",
    ]
    assert evidence(observed(run=run(told)), {}, [], []) == [], "a run without pods of sandboxes"


def test_autoscaling_says_why_there_are_that_many_engines() -> None:
    told = status("Running", "training", inference={"replicas": 3, "autoscale": "3 engines: for a reason"})
    found = [str(one) for one in evidence(observed(run=run(told)), {}, [], [])]
    assert found == ["autoscale: 3 engines: for a reason"]


def test_restarts_in_place_are_told() -> None:
    told = status("Running", "training", control={"restartsInPlace": 2})
    found = [str(one) for one in evidence(observed(run=run(told)), {}, [], [])]
    assert found == ["restarts: 2 of the trainer's processes in place in this attempt; events RestartedInPlace say why"]


def test_pods_in_the_place_of_lost_ones_are_told() -> None:
    told = status("Running", "training", control={"replacements": 1, "replacing": {"3": 1, "1": 1}})
    found = [str(one) for one in evidence(observed(run=run(told)), {}, [], [])]
    assert found == [
        "restarts: 1 with another pod in a lost one's place in this attempt; events PodLost and PodReplaced say which",
        "restarts: the gang waits for another pod in the place of one-trainer-1, one-trainer-3",
    ]


def test_a_run_that_is_being_deleted() -> None:
    gone = run(status("Running"))
    object.__setattr__(gone, "deleted_at", NOW)
    assert sentence(observed(unscheduled(), run=gone)) == "one is being deleted; 1 pod is left"


def test_evidence_tells_pods_events_nodes_and_what_may_not_be_read() -> None:
    crashing = container("inference", ContainerPhase.WAITING, reason="CrashLoopBackOff", message="back-off", restarts=3)
    pods = [
        unscheduled(),
        pod("one-inference-a", PodRole.INFERENCE, ready=False, containers=(crashing,)),
        ended("one-orchestrator", PodRole.ORCHESTRATOR, 3, "the loss is NaN"),
        pod("one-trainer-0", PodRole.TRAINER, gated=True, ready=False, containers=(), node=""),
        pod("one-inference-b", PodRole.INFERENCE),
    ]
    said = WarningEvent(
        EventSubject("Pod", "one-trainer-1"), "Warning", "FailedScheduling", "no room", 4, NOW - 90, NOW - 5
    )
    blocked = {
        "type": "Blocked",
        "status": "True",
        "reason": "Unschedulable",
        "message": "m",
        "lastTransitionTime": to_text(NOW - 70),
    }
    world = observed(*pods, run=run(status("Starting", conditions=[blocked])), warning_events=(said,))
    assert short_of(world) == (GPU,)
    room = rooms(GPU, [Node("node-a", {GPU: "8"}, schedulable=True)], {"node-a": ["6"]})
    lines = [str(one) for one in evidence(world, {GPU: room}, [], ["events"])]
    assert lines == [
        "condition Blocked: True since 1 min 10 s, Unschedulable: m",
        "pod one-trainer-1: Pending, 4 min 10 s old; the scheduler: 0/2 nodes are available: "
        "2 Insufficient nvidia.com/gpu.",
        "pod one-inference-a: Running on node-1, 1 min 30 s old; inference waits: CrashLoopBackOff: back-off, "
        "3 restarts",
        "pod one-orchestrator: Failed on node-1, 1 min 30 s old; orchestrator ended 30 s ago with code 3 (): "
        "the loss is NaN",
        "pod one-trainer-0: Running, 1 min 30 s old; held back until its gang is whole and prepared",
        "nodes with nvidia.com/gpu: node-a 2 of 8 free",
        "event Pod one-trainer-1: FailedScheduling x4, 5 s ago: no room",
        "withheld: not allowed to read events",
    ]


def test_events_of_the_run_are_evidence_where_no_condition_says_the_same() -> None:
    own = EventSubject("EchoRLRun", "one")
    said = [
        WarningEvent(own, kind, reason, "m", 1, NOW, NOW - 5)
        for kind, reason in (("Normal", "Prepared"), ("Warning", "Blocked"), ("Warning", "GangRestarted"))
    ]
    found = evidence(observed(warning_events=tuple(said)), {}, [], [])
    assert [str(one) for one in found] == ["event EchoRLRun one: GangRestarted, 5 s ago: m"]


def test_a_pod_that_holds_a_name_of_the_runs_is_named() -> None:
    stranger = pod("one-trainer-0", PodRole.TRAINER)
    world = observed(run=run(status("Starting")), strangers=(stranger,))
    assert sentence(world).startswith("one waits: one-trainer-0 cannot be created: a pod of that name")
    assert [str(one) for one in evidence(world, {}, [], [])] == [
        "pod one-trainer-0: not the run's: Running on node-1, 1 min 30 s old"
    ]


def test_evidence_is_bounded() -> None:
    pods = [pod(f"one-trainer-{n}", PodRole.TRAINER, ready=False) for n in range(64)]
    said = [WarningEvent(EventSubject("Pod", f"p{n}"), "Warning", "Failed", "x" * 9000, 1, NOW, NOW) for n in range(64)]
    found = evidence(observed(*pods, warning_events=tuple(said)), {}, [], [])
    assert len(found) == 17
    assert max(len(str(one)) for one in found) < 500
