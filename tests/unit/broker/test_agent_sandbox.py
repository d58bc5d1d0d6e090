"""What is known of a Sandbox by its own object and by its pod."""

from dataclasses import replace

import msgspec
import pytest

from echorl_broker.agent_sandbox import sandbox_of, with_pod
from echorl_broker.losses import Lost, Up, Waits, state_of
from echorl_broker.pods import sandbox_pod
from echorl_core.wire.sandboxes import Why
from echorl_operator.observed import decode

CREATED = 1_000_000_000.0
META = {"name": "one-sandbox-1", "namespace": "research", "creationTimestamp": "2001-09-09T01:46:40Z"}


def held(message="Pod does not exist"):
    found = sandbox_pod(msgspec.json.encode({"metadata": {**META, "uid": "s-1", "resourceVersion": "7"}}))
    return replace(found, made=False, record=replace(found.record, message=message))


def pod(owner="s-1", deleted=None, **status):
    owners = [{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "x", "uid": owner}]
    # A minute after its Sandbox.
    meta = {**META, "uid": "p-1", "resourceVersion": "9", "creationTimestamp": "2001-09-09T01:47:40Z"}
    meta |= {"ownerReferences": [{**owners[0], "controller": True}], "deletionTimestamp": deleted}
    return decode.pod(msgspec.json.encode({"metadata": meta, "spec": {"nodeName": "n1"}, "status": status}))


READY = {"phase": "Running", "podIP": "10.1.1.1", "conditions": [{"type": "Ready", "status": "True"}]}
DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
FULL = {"phase": "Failed", "reason": "Evicted", "message": 'Usage of EmptyDir volume "files" exceeds the limit'}
LATER = "2001-09-09T01:48:40Z"
TOO_LATE = "not ready after 300 s: Pod does not exist"


@pytest.mark.parametrize(
    ("found", "age_s", "state"),
    [
        (None, 300, Waits("Pod does not exist", Why.ADMISSION)),
        (None, 301, Lost("refused", TOO_LATE)),
        (pod(owner="s-0", **READY), 300, Waits("Pod does not exist", Why.ADMISSION)),
        (pod(owner="s-0", **READY), 301, Lost("refused", TOO_LATE)),
        (pod(**READY), 301, Up("10.1.1.1")),
        # Its time began with its Sandbox's.
        (pod(phase="Pending"), 300, Waits("its pod starts", Why.START)),
        (pod(phase="Pending"), 301, Lost("start", "not ready after 300 s: its pod starts")),
        (pod(deleted=LATER, **READY), 120, Lost("evicted", "Deleted: its pod was deleted: by hand")),
        (
            pod(deleted=LATER, phase="Running", conditions=DISRUPTED),
            120,
            Lost("evicted", "Deleted: its pod was deleted: EvictionByEvictionAPI"),
        ),
        (pod(deleted=LATER, **FULL), 120, Lost("overused", f"evicted for what it wrote: {FULL['message']}")),
    ],
)
def test_a_sandbox_is_what_its_own_pod_is(found, age_s, state):
    sandbox = with_pod(held(), found)
    assert state_of(sandbox.record, now=CREATED + age_s, start_deadline_s=300.0) == state


def test_a_quota_that_keeps_the_controller_is_named_as_such():
    words = 'Error seen: pods "one" is forbidden: exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1'
    state = state_of(with_pod(held(words), None).record, now=CREATED, start_deadline_s=300.0)
    assert state == Waits(words, Why.QUOTA)


def test_it_is_deleted_by_its_own_uid_and_followed_by_its_pods_version():
    alone, together = with_pod(held(), None), with_pod(held(), pod(**READY))
    assert [(one.made, one.record.meta.uid, one.record.meta.resource_version) for one in (alone, together)] == [
        (False, "s-1", "7"),
        (True, "s-1", "9"),
    ]


def test_a_sandbox_that_is_being_deleted_takes_its_pod_along():
    leaving = held()
    leaving = replace(leaving, record=replace(leaving.record, meta=replace(leaving.record.meta, deleted_at=CREATED)))
    record = with_pod(leaving, pod(deleted=LATER, **READY)).record
    assert (record.reason, record.meta.deleted_at) == ("", CREATED)


def test_a_sandbox_says_of_itself_what_its_pod_says():
    metadata = {"name": "n", "namespace": "r", "labels": {"a": "b"}, "annotations": {"c": "d"}, "ownerReferences": [{}]}
    made = sandbox_of({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}})
    assert (made["apiVersion"], made["kind"], made["metadata"]) == ("agents.x-k8s.io/v1beta1", "Sandbox", metadata)
    template = {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": {"containers": []}}
    assert made["spec"] == {"podTemplate": template}
