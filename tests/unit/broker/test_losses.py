"""What became of a sandbox, from pods as kubelets and schedulers write them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_broker.losses import Lost, Up, Waits, stands, state_of
from echorl_broker.metrics import State
from echorl_core.wire.sandboxes import Why
from echorl_operator.observed import decode

NOW = 1_000_000_000.0
TOO_LATE_S = 300.0


def container(name="sandbox", ready=False, **state):
    return {"name": name, "image": "x", "imageID": "", "ready": ready, "restartCount": 0, "state": state}


def waiting(reason, message="said by the kubelet", name="sandbox"):
    return container(name, waiting={"reason": reason, "message": message})


def ended(code, reason="Error", name="sandbox", message=""):
    terminated = {"exitCode": code, "reason": reason, "message": message, "finishedAt": "2001-09-09T01:46:30Z"}
    return container(name, terminated=terminated)


def pod(*containers, age_s=20, node="n1", deleted=False, **status):
    installed = [one for one in containers if one["name"] == "install"] or [ended(0, "Completed", "install")]
    created = {"creationTimestamp": f"2001-09-09T01:{46 - (age_s + 20) // 60:02}:{(40 - age_s) % 60:02}Z"}
    leaving = {"deletionTimestamp": "2001-09-09T01:46:39Z"} if deleted else {}
    body = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "1", **created, **leaving},
        "spec": {
            "nodeName": node,
            "initContainers": [{"name": "install"}],
            "containers": [{"name": "sandbox"}],
        },
        "status": {
            "initContainerStatuses": installed,
            "containerStatuses": [one for one in containers if one["name"] == "sandbox"],
            **status,
        },
    }
    return decode.pod(msgspec.json.encode(body))


def state(*containers, **rest):
    return state_of(pod(*containers, **rest), now=NOW, start_deadline_s=TOO_LATE_S)


def condition(kind, status="True", reason="", message=""):
    return {"type": kind, "status": status, "reason": reason, "message": message}


FAILED = {"phase": "Failed"}
LOW = "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 2Mi. "
CASES = {
    "memory": (state(ended(137, "OOMKilled"), **FAILED), "overused", "memory"),
    "disk of the pod": (
        state(
            reason="Evicted",
            message="Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
            **FAILED,
        ),
        "overused",
        "exceeds the total limit",
    ),
    "disk of its container": (
        state(
            reason="Evicted", message='Container sandbox exceeded its local ephemeral storage limit "1Gi". ', **FAILED
        ),
        "overused",
        "local ephemeral storage limit",
    ),
    "disk of a volume, which is told as a disruption too": (
        state(
            reason="Evicted",
            message='Usage of EmptyDir volume "files" exceeds the limit "1Gi". ',
            conditions=[condition("DisruptionTarget", reason="TerminationByKubelet")],
            **FAILED,
        ),
        "overused",
        "EmptyDir",
    ),
    "disk of the node": (state(reason="Evicted", message=LOW, **FAILED), "evicted", "low on resource"),
    "time of the pod": (
        state(ended(137), reason="DeadlineExceeded", message="Pod was active on the node longer than", **FAILED),
        "expired",
        "longer than",
    ),
    "time of the daemon": (state(ended(124), **FAILED), "expired", "outlived"),
    "preempted": (
        state(
            deleted=True, conditions=[condition("DisruptionTarget", reason="PreemptionByScheduler")], phase="Running"
        ),
        "evicted",
        "PreemptionByScheduler",
    ),
    "drained": (
        state(ended(137), conditions=[condition("DisruptionTarget", reason="EvictionByEvictionAPI")], **FAILED),
        "evicted",
        "EvictionByEvictionAPI",
    ),
    "a lost node": (state(reason="NodeLost", message="Node n1 is gone", phase="Running"), "evicted", "n1 is gone"),
    "a node that is shut down": (state(reason="Terminated", message="Pod was terminated", **FAILED), "evicted", ""),
    "no room on the node after all": (
        state(reason="OutOfcpu", message="Node did not have", **FAILED),
        "refused",
        "OutOfcpu",
    ),
    "not the node's kind": (state(reason="NodeAffinity", **FAILED), "refused", "NodeAffinity"),
    "a name that is none": (state(waiting("InvalidImageName"), phase="Pending"), "image", "InvalidImageName"),
    "no image for long": (
        state(waiting("ImagePullBackOff"), age_s=61, phase="Pending"),
        "image",
        "said by the kubelet",
    ),
    "no image of the daemon": (
        state(waiting("ErrImageNeverPull", name="install"), phase="Pending"),
        "refused",
        "the installation's daemon image",
    ),
    "the daemon was not put there": (
        state(ended(1, name="install", message="no space"), **FAILED),
        "refused",
        "code 1: no space",
    ),
    "a container that cannot be made": (state(waiting("CreateContainerError"), phase="Pending"), "start", ""),
    "a program that cannot be started": (
        state(ended(128, "StartError", message="exec format error"), **FAILED),
        "start",
        "exec format error",
    ),
    "the daemon was killed": (state(ended(137), **FAILED), "lost", "code 137"),
    "an end that nobody explains": (state(**FAILED), "lost", "ended"),
    "never a node": (
        state(
            age_s=301,
            node="",
            conditions=[condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")],
            phase="Pending",
        ),
        "refused",
        "0/3 nodes are available",
    ),
    "never ready": (state(container(running={}), age_s=301, phase="Running"), "start", "not ready after 300 s"),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_by_status(name):
    found, loss, words = CASES[name]
    assert isinstance(found, Lost), found
    assert found.loss == loss
    assert words in found.message


WAITING = {
    "no node": (
        state(
            node="",
            conditions=[condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")],
            phase="Pending",
        ),
        Waits("its pod waits for a node: 0/3 nodes are available", Why.NODE),
    ),
    "not looked at": (state(node="", phase="Pending"), Waits("its pod waits for a node", Why.NODE)),
    "an image that may still come": (
        state(waiting("ErrImagePull", "timeout"), age_s=59, phase="Pending"),
        Waits("its image does not come yet: ErrImagePull: timeout", Why.IMAGE),
    ),
    "its daemon starts": (state(container(running={}), phase="Running"), Waits("its pod starts", Why.START)),
    "the daemon is put there": (
        state(container("install", running={}), waiting("PodInitializing"), phase="Pending"),
        Waits("its pod starts", Why.START),
    ),
}


@pytest.mark.parametrize("name", WAITING)
def test_what_is_on_its_way_says_why(name):
    found, expected = WAITING[name]
    assert found == expected


def test_what_is_ready_has_an_address():
    ready = [condition("Ready")]
    assert state(container(ready=True, running={}), phase="Running", podIP="10.0.0.1", conditions=ready) == Up(
        "10.0.0.1"
    )
    without = state(container(ready=True, running={}), phase="Running", conditions=ready)
    assert without == Waits("its pod starts", Why.START)


UP = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [condition("Ready")]}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pod(node="", phase="Pending"), State.WAITING),
        (pod(waiting("ErrImagePull"), phase="Pending"), State.STARTING),
        (pod(container(ready=True, running={}), **UP), State.READY),
        (pod(container(ready=True, running={}), deleted=True, **UP), State.ENDED),
        (pod(ended(1), **FAILED), State.ENDED),
    ],
)
def test_every_pod_stands_somewhere(found, expected):
    assert stands(found, now=NOW, start_deadline_s=TOO_LATE_S) is expected


TEXT = st.text(max_size=30)


@given(
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown", ""]),
    reason=st.sampled_from(["", "Evicted", "NodeLost", "OutOfmemory", "Whatever"]),
    message=TEXT,
    code=st.integers(0, 255),
    of=st.sampled_from(["waiting", "running", "terminated", "nothing"]),
    ready=st.booleans(),
)
def test_no_status_is_ready_once_it_has_ended(phase, reason, message, code, of, ready):
    made = {
        "waiting": [waiting("Whatever", message)],
        "running": [container(running={})],
        "terminated": [ended(code)],
        "nothing": [],
    }[of]
    conditions = [condition("Ready")] if ready else []
    found = state(*made, phase=phase, reason=reason, message=message, podIP="10.0.0.1", conditions=conditions)
    if phase in {"Succeeded", "Failed"} or of == "terminated":
        assert isinstance(found, Lost)
    assert not isinstance(found, Lost) or len(found.message) <= 500
