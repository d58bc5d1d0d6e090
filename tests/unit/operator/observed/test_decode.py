import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from echorl_operator.names import PodRole
from echorl_operator.observed import decode
from echorl_operator.observed.records import ContainerPhase, Kind, PodPhase
from echorl_operator.observed.runs import RunKey


def _pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "r-trainer-1",
            "namespace": "ns",
            "uid": "pod-uid",
            "resourceVersion": "12",
            "generation": 1,
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "labels": {
                "echorl.dev/run": "r",
                "echorl.dev/run-uid": "run-uid",
                "echorl.dev/role": "trainer",
                "echorl.dev/attempt": "3",
                "apps.kubernetes.io/pod-index": "1",
            },
            "ownerReferences": [
                {"uid": "not", "kind": "X", "name": "x"},
                {"uid": "set-uid", "kind": "StatefulSet", "name": "r-trainer", "controller": True},
            ],
            "managedFields": [{"manager": "m", "fieldsV1": {f"f:{number}": {} for number in range(300)}}],
        },
        "spec": {
            "nodeName": "node-1",
            "nodeSelector": {"zone": "a", "gpu": "h100"},
            "containers": [{"name": "zz"}, {"name": "aa"}],
            "initContainers": [{"name": "setup"}],
            "schedulingGates": [{"name": "kueue"}, {"name": "echorl.dev/attempt"}],
        },
        "status": status,
    }


def _decode(body: dict[str, Any]) -> Any:
    return decode.pod(json.dumps(body).encode())


def test_who_a_pod_is() -> None:
    pod = _decode(_pod())
    meta = pod.meta
    assert (meta.namespace, meta.name, meta.uid, meta.resource_version) == ("ns", "r-trainer-1", "pod-uid", "12")
    assert (meta.run, meta.run_uid, meta.owner_uid) == ("r", "run-uid", "set-uid")
    assert (meta.created_at, meta.deleted_at) == (1767323045.0, None)
    assert pod.node_selector == (("gpu", "h100"), ("zone", "a"))
    assert (pod.role, pod.attempt, pod.index, pod.gated, pod.node) == (PodRole.TRAINER, 3, 1, True, "node-1")
    assert (pod.phase, pod.ready, pod.containers) == (PodPhase.UNKNOWN, False, ())


def test_a_running_pod() -> None:
    conditions = [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:06Z"},
        {"type": "PodScheduled", "status": "True"},
        {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"},
    ]
    statuses = [
        {"name": "aa", "ready": True, "restartCount": 2, "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}}},
        {"name": "zz", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
    ]
    pod = _decode(_pod(phase="Running", podIP="10.0.0.7", conditions=conditions, containerStatuses=statuses))
    assert (pod.phase, pod.ip, pod.ready, pod.ready_since) == (PodPhase.RUNNING, "10.0.0.7", True, 1767323046.0)
    assert pod.disrupted == "EvictionByEvictionAPI"
    assert [one.name for one in pod.containers] == ["zz", "aa"], "in the pod's order, not the kubelet's"
    zz, aa = pod.containers
    assert (zz.phase, zz.reason, zz.message) == (ContainerPhase.WAITING, "ImagePullBackOff", "no such image")
    assert (aa.phase, aa.restarts, aa.ready, aa.since) == (ContainerPhase.RUNNING, 2, True, 1767323045.0)
    assert not pod.ended


def test_a_failed_pod_and_its_last_words() -> None:
    ended = {
        "exitCode": 137,
        "signal": 0,
        "reason": "OOMKilled",
        "message": "m" * 9000,
        "finishedAt": "2026-01-02T03:04:05Z",
    }
    init = [{"name": "setup", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]
    status = [{"name": "zz", "state": {"terminated": ended}}]
    pod = _decode(_pod(phase="Failed", reason="Evicted", initContainerStatuses=init, containerStatuses=status))
    assert (pod.ended, pod.reason) == (True, "Evicted")
    assert [one.name for one in pod.containers] == ["setup", "zz"]
    died = pod.containers[1]
    assert (died.exit_code, died.signal, died.reason, died.since) == (137, None, "OOMKilled", 1767323045.0)
    assert len(died.message) == 4096


def test_how_a_container_ended_before_it_is_started_again() -> None:
    last = {"exitCode": 2, "reason": "Error", "message": "m" * 9000, "finishedAt": "2026-01-02T03:04:05Z"}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    status = [{"name": "zz", "restartCount": 3, "state": waiting, "lastState": {"terminated": last}}]
    (container,) = _decode(_pod(phase="Running", containerStatuses=status)).containers
    assert (container.phase, container.exit_code, container.restarts) == (ContainerPhase.WAITING, None, 3)
    assert container.last is not None
    assert (container.last.name, container.last.phase) == ("zz", ContainerPhase.TERMINATED)
    assert (container.last.exit_code, container.last.since, len(container.last.message)) == (2, 1767323045.0, 4096)
    (first,) = _decode(_pod(phase="Running", containerStatuses=[{"name": "zz", "lastState": {}}])).containers
    assert first.last is None


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}, "0/2 nodes"),
        ({"status": "False", "reason": "SchedulingGated", "message": "gated"}, ""),
        ({"status": "False", "reason": "SchedulerError"}, "SchedulerError"),
        ({"status": "True"}, ""),
    ],
)
def test_why_a_pod_is_not_scheduled(condition: dict[str, str], expected: str) -> None:
    pod = _decode(_pod(phase="Pending", conditions=[{"type": "PodScheduled", **condition}]))
    assert pod.unscheduled == expected


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "²", "9" * 23])
def test_odd_labels_are_none_of_ours(value: str) -> None:
    body = _pod()
    body["metadata"]["labels"] |= {"echorl.dev/attempt": value, "echorl.dev/role": value}
    pod = _decode(body)
    assert (pod.attempt, pod.role) == (0, None)


@pytest.mark.parametrize(
    ("name", "role", "expected"),
    [
        ("r-trainer-1", "trainer", PodRole.TRAINER),
        ("r-trainer-1-debug", "trainer", None),
        ("mine", "orchestrator", None),
        ("r-orchestrator", "orchestrator", PodRole.ORCHESTRATOR),
        ("r-prepare-7", "prepare", PodRole.PREPARE),
        ("r-prepare-7-copy", "prepare", None),
        ("r-inference-5d9-x2", "inference", PodRole.INFERENCE),
        ("r-env-wordle-5d9-x2", "environment", PodRole.ENVIRONMENT),
    ],
)
def test_a_copy_of_a_pod_with_its_labels_is_none_of_the_runs(name: str, role: str, expected: PodRole | None) -> None:
    body = _pod()
    body["metadata"]["name"] = name
    body["metadata"]["labels"]["echorl.dev/role"] = role
    assert _decode(body).role is expected
    del body["metadata"]["labels"]["echorl.dev/run"]
    assert _decode(body).role == PodRole(role), "nobody knows then how it should be called"


def test_a_pod_takes_at_most_two_kilobytes() -> None:
    statuses = [{"name": name, "ready": True, "state": {"running": {}}} for name in ("aa", "zz")]
    bodies = []
    for number in range(1000):
        body = _pod(phase="Running", podIP=f"10.0.{number // 250}.{number % 250}", containerStatuses=statuses)
        body["metadata"] |= {"name": f"pod-{number}", "uid": f"uid-{number}"}
        bodies.append(json.dumps(body).encode())
    tracemalloc.start()
    kept = [decode.pod(body) for body in bodies]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / len(kept) < 2048


def _child(**fields: Any) -> dict[str, Any]:
    metadata = {
        "name": "c",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "3",
        "generation": 4,
        "deletionTimestamp": "2026-01-02T03:04:05Z",
        "managedFields": [{"manager": "m"}],
        "annotations": {"echorl.dev/hash": "h"},
    }
    return {"metadata": metadata, **fields}


def test_a_deployments_state_and_body() -> None:
    status = {
        "observedGeneration": 4,
        "replicas": 3,
        "readyReplicas": 2,
        "updatedReplicas": 1,
        "conditions": [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}],
    }
    body = json.dumps(_child(spec={"replicas": 3}, status=status)).encode()
    child = decode.child(Kind.DEPLOYMENT, body)
    assert (child.observed_generation, child.replicas, child.ready, child.updated) == (4, 3, 2, 1)
    assert child.failure == "exceeded quota"
    assert (child.meta.generation, child.meta.deleted_at) == (4, 1767323045.0)
    kept = json.loads(child.body)
    assert kept["spec"] == {"replicas": 3}
    assert kept["metadata"]["annotations"] == {"echorl.dev/hash": "h"}
    assert "status" not in kept
    assert "managedFields" not in kept["metadata"]


def test_a_claims_phase() -> None:
    child = decode.child(Kind.CLAIM, json.dumps(_child(status={"phase": "Pending"})).encode())
    assert child.phase == "Pending"


def test_nothing_of_a_secret_is_kept() -> None:
    child = decode.child(Kind.SECRET, json.dumps(_child(data={"token": "c2VjcmV0"})).encode())
    assert child.body == b""
    assert child.meta.name == "c"


def test_another_kinds_status_is_no_matter() -> None:
    child = decode.child(Kind.DISRUPTION_BUDGET, json.dumps(_child(status={"observedGeneration": "odd"})).encode())
    assert child.observed_generation == 0


def test_a_run() -> None:
    body = {
        "metadata": {"name": "r", "namespace": "ns", "uid": "u", "resourceVersion": "9", "generation": 2},
        "spec": {"model": {"path": 7}},
        "status": {"phase": "Running"},
    }
    run = decode.run(json.dumps(body).encode())
    assert run.key == RunKey("ns", "r")
    assert (run.generation, run.spec, run.status) == (2, {"model": {"path": 7}}, {"phase": "Running"})
    assert decode.run_from_object(body) == run


def test_a_null_in_a_runs_status_is_as_if_it_were_left_out() -> None:
    status = {"phase": "Running", "timeline": None, "conditions": None, "control": None}
    body = {"metadata": {"name": "one", "namespace": "ns"}, "spec": {}, "status": status}
    assert decode.run(msgspec.json.encode(body)).status == {"phase": "Running"}


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode.pod(b'{"metadata": 3}')
    with pytest.raises(msgspec.MsgspecError):
        decode.child(Kind.SERVICE, b"[]")
