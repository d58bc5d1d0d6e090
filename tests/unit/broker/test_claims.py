"""Pools of agent-sandbox and claims on them: numbers by hand, and what is known of a sandbox by its claim."""

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from echorl_broker.claims import claim_of, pool_for, pool_of, read_claim, sizes, template_of, with_pod_of_claim
from echorl_broker.labels import pool_name
from echorl_broker.losses import Lost, Up, Waits, state_of
from echorl_broker.pods import SandboxPod, sandbox_pod
from echorl_broker.profile import POOLED_S, Owner, pooled_pod, shape_of
from echorl_broker.profile import sandbox_pod as pod_of
from echorl_broker.settings import BrokerSettings
from echorl_core.wire.sandboxes import Limits, Wanted, Why

CREATED = 1_000_000_000.0
LIMITS = Limits(cpu=1, memory_bytes=1 << 28, disk_bytes=1 << 28)
WANTED = Wanted(run_uid="u", image="task:1", workdir="/task", limits=LIMITS, ttl_s=600, gateway=True)
OWNER = Owner(namespace="ns", run="one", uid="u", attempt="1", orchestrator_uid="o")
SETTINGS = BrokerSettings(daemon_image="daemon:1", runtime_class_name="gvisor", user_namespaces=True)
READY = {"phase": "Running", "podIP": "10.1.1.1", "conditions": [{"type": "Ready", "status": "True"}]}


@pytest.mark.parametrize(
    ("now", "own", "most", "room", "then"),
    [
        ({}, "a", 2, 1, {"a": 1}),
        ({"a": 1}, "a", 2, 1, {"a": 2}),
        ({"a": 2}, "a", 2, 1, {"a": 2}),
        ({"a": 1}, "a", 2, 0, {"a": 1}),
        ({}, "a", 2, 0, {}),
        # Where all that may be are there, the oldest of another shape makes room.
        ({"a": 1, "b": 1}, "c", 2, 1, {"a": 0, "b": 1, "c": 1}),
        ({"a": 0, "b": 2}, "a", 2, 0, {"a": 1, "b": 1}),
        # Fewer are to come than there are.
        ({"a": 3, "b": 3}, None, 4, 9, {"a": 1, "b": 3}),
        ({"a": 3, "b": 3}, "a", 1, 9, {"a": 1, "b": 0}),
        ({"a": 3}, "a", 0, 9, {"a": 0}),
    ],
)
def test_how_large_pools_are_to_be(now: dict[str, int], own: str, most: int, room: int, then: dict[str, int]) -> None:
    assert sizes(now, own, most=most, room=room) == then


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9)), st.sampled_from("abcde"), st.integers(0, 9))
def test_pools_keep_no_more_than_may_be_and_grow_by_one(now: dict[str, int], own: str, most: int) -> None:
    then = sizes(now, own, most=most, room=1)
    assert sum(then.values()) <= max(most, 0)
    assert min(then.values(), default=0) >= 0
    assert then.get(own, 0) <= now.get(own, 0) + 1
    assert sum(then.values()) >= min(sum(now.values()), most)


def pooled() -> dict[str, Any]:
    return pooled_pod(OWNER, WANTED, SETTINGS, token_sha256="ab" * 32)


def test_a_pools_pods_are_isolated_as_others_are() -> None:
    alone = pod_of(OWNER, "k", WANTED, SETTINGS, nonce="n", token_sha256="ab" * 32)
    template = template_of(pooled())
    spec = template["spec"]["podTemplate"]["spec"]
    lives_s = str(POOLED_S + 600)
    assert spec["activeDeadlineSeconds"] == POOLED_S + 600
    words = spec["containers"][0]["command"]
    words[words.index(lives_s)] = "600"
    assert spec == {**alone["spec"], "activeDeadlineSeconds": POOLED_S + 600}
    assert template["spec"]["networkPolicyManagement"] == "Unmanaged"
    labels = template["spec"]["podTemplate"]["metadata"]["labels"]
    assert labels == {**alone["metadata"]["labels"], "echorl.dev/sandbox-warm": shape_of(WANTED)}
    assert template["metadata"]["ownerReferences"] == alone["metadata"]["ownerReferences"]


def test_a_claim_is_of_the_sandboxs_name_on_the_pool_of_its_shape() -> None:
    alone = pod_of(OWNER, "k", WANTED, SETTINGS, nonce="n", token_sha256="ab" * 32)
    assert pool_for(alone) is None
    alone["metadata"]["labels"]["echorl.dev/sandbox-shape"] = shape_of(WANTED)
    name = pool_for(alone)
    assert name == pooled()["metadata"]["name"] == pool_of(pooled(), 3)["spec"]["sandboxTemplateRef"]["name"]
    claim = claim_of(alone, name)
    assert claim["spec"] == {"warmPoolRef": {"name": name}}
    assert claim["metadata"]["name"] == alone["metadata"]["name"]
    assert claim["metadata"]["annotations"]["echorl.dev/sandbox-key"] == "k"
    assert "echorl.dev/sandbox-nonce" not in claim["metadata"]["annotations"]


@given(st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True))
@example("r" * 63)
def test_a_pools_name_leaves_room_for_its_sandboxes(run: str) -> None:
    assert len(pool_name(run, "o", "s")) + len("-abcde") <= 63


META = {"namespace": "ns", "creationTimestamp": "2001-09-09T01:46:40Z"}
LABELS = {"app.kubernetes.io/managed-by": "echorl-broker", "echorl.dev/run-uid": "u"}


def claim(message: str = "SandboxMissing", sandbox: str = "") -> dict[str, Any]:
    annotations = {"echorl.dev/sandbox-key": "k", "echorl.dev/sandbox-ttl-seconds": "600"}
    meta = {**META, "name": "one-sandbox-1", "uid": "c-1", "resourceVersion": "7"}
    return {
        "metadata": {**meta, "labels": LABELS, "annotations": annotations},
        "spec": {"warmPoolRef": {"name": "the-pool"}},
        "status": {
            "conditions": [{"type": "Ready", "status": "False", "message": message}],
            "sandbox": {"name": sandbox},
        },
    }


def pod(labels: dict[str, str] | None = None, key: str = "", **status: Any) -> SandboxPod:
    # An hour before its claim.
    meta = {**META, "creationTimestamp": "2001-09-09T00:46:40Z", "name": "the-pool-abcde", "uid": "p-1"}
    meta |= {"labels": {**LABELS, "echorl.dev/sandbox-warm": "s", **(labels or {})}, "resourceVersion": "9"}
    if key:
        meta["annotations"] = {"echorl.dev/sandbox-key": key}
    return sandbox_pod(msgspec.json.encode({"metadata": meta, "spec": {"nodeName": "n"}, "status": status}))


def seen(found: SandboxPod | None, sandbox: str = "the-pool-abcde") -> SandboxPod:
    return with_pod_of_claim(read_claim(msgspec.json.encode(claim(sandbox=sandbox))), found)


def test_what_is_known_of_a_sandbox_by_its_claim() -> None:
    alone = seen(None, sandbox="")
    assert (alone.key, alone.ttl_s, alone.made, alone.token_of) == ("k", 600.0, False, "the-pool")
    words = "the controller of agent-sandbox has not made its pod: SandboxMissing"
    assert state_of(alone.record, now=CREATED + 300, start_deadline_s=300) == Waits(words, Why.ADMISSION)
    late = state_of(alone.record, now=CREATED + 301, start_deadline_s=300)
    assert late == Lost("refused", f"not ready after 300 s: {words}")
    given = seen(pod(**READY))
    assert state_of(given.record, now=CREATED, start_deadline_s=300) == Up("10.1.1.1")
    assert (given.record.meta.uid, given.record.meta.resource_version, given.key) == ("c-1", "7", "k")
    assert given.unclaimed is not None
    assert given.unclaimed.name == "the-pool-abcde"


def test_a_pod_that_says_whose_it_is_is_claimed_once_and_by_nobody_else() -> None:
    mine = seen(pod({"echorl.dev/sandbox-claim": "d"}, key="k", **READY))
    assert (mine.unclaimed, mine.key) == (None, "k")
    assert seen(pod({"echorl.dev/sandbox-claim": "d"}, key="other", **READY)).key == ""
    assert not seen(pod({"echorl.dev/run-uid": "another run"}, **READY)).made
