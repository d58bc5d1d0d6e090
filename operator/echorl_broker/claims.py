"""Pools of agent-sandbox and claims on them: how they look, and how large pools are to be. Pure.

A pool is one of its templates' own name. A claim bears the name, labels and annotations that a Sandbox of its key would
bear; which Sandbox, and so which pod, it got is in its status.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from echorl_broker import labels
from echorl_broker.losses import DELETED
from echorl_broker.pods import SandboxPod, sandbox_pod
from echorl_broker.profile import Object
from echorl_operator import names
from echorl_operator.kube.resources import Resource
from echorl_operator.observed.records import PodRecord

_EXTENSIONS = "extensions.agents.x-k8s.io/v1beta1"
TEMPLATE = Resource(_EXTENSIONS, "SandboxTemplate", "sandboxtemplates")
POOL = Resource(_EXTENSIONS, "SandboxWarmPool", "sandboxwarmpools")
CLAIM = Resource(_EXTENSIONS, "SandboxClaim", "sandboxclaims")
_NO_WORD = "it has not said why"


class _Condition(msgspec.Struct):
    type: str
    message: str = ""


class _Named(msgspec.Struct):
    name: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    warm_pool_ref: _Named = msgspec.field(default_factory=_Named)
    replicas: int = 0


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None
    sandbox: _Named = msgspec.field(default_factory=_Named)


class _Held(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_HELD = msgspec.json.Decoder(_Held)


@dataclass(frozen=True)
class Pool:
    """One pool of a run."""

    held: SandboxPod
    """As one to reap: it has a run and an orchestrator, and never outlives a time."""
    replicas: int
    """Sandboxes that its controller keeps ready."""

    @property
    def name(self) -> str:
        """Its own, and its template's."""
        return self.held.record.meta.name


@dataclass(frozen=True)
class Claim:
    """One claim of a run."""

    held: SandboxPod
    pod: str
    """Name of the pod that it got; empty: none yet."""


def read_held(body: bytes, kind: Resource) -> SandboxPod:
    """What is known of a sandbox by the object of agent-sandbox that stands for it, without its pod."""
    found, conditions = sandbox_pod(body), _HELD.decode(body).status.conditions or ()
    said = next((one.message for one in conditions if one.type == "Ready"), "") or _NO_WORD
    words = f"the controller of agent-sandbox has not made its pod: {said}"
    return replace(found, made=False, followed=kind, record=replace(found.record, message=words, unscheduled=""))


def read_claim(body: bytes) -> Claim:
    """A claim from its JSON."""
    held = _HELD.decode(body)
    return Claim(replace(read_held(body, CLAIM), token_of=held.spec.warm_pool_ref.name), held.status.sandbox.name)


def read_pool(body: bytes) -> Pool:
    """A pool from its JSON."""
    return Pool(replace(read_held(body, POOL), ttl_s=math.inf), _HELD.decode(body).spec.replicas)


def with_record(sandbox: SandboxPod, pod: PodRecord) -> SandboxPod:
    """A sandbox that something else stands for, with the status of its pod.

    The controller makes a pod that was deleted anew, empty: a sandbox whose pod is deleted is taken away.
    """
    meta = sandbox.record.meta
    record = replace(pod, meta=meta)
    if pod.meta.deleted_at is not None and meta.deleted_at is None and not pod.reason:
        record = replace(record, reason=DELETED, message=f"its pod was deleted: {pod.disrupted or 'by hand'}")
    return replace(sandbox, made=True, record=record)


def with_pod_of_claim(claim: Claim, pod: SandboxPod | None) -> SandboxPod:
    """What a claim stands for: with the status of the pod that it got, if that is one of its run.

    A pod that says that it is another's is nobody's here: the key is empty.
    """
    held = claim.held
    if pod is None or pod.record.meta.run_uid != held.record.meta.run_uid:
        return held
    found = with_record(held, pod.record)
    return replace(
        found,
        key=held.key if pod.key in {"", held.key} else "",
        unclaimed=pod.record.meta if pod.warm else None,
    )


def template_of(pod: Object) -> Object:
    """The template whose pods are this one: of its name, owner and labels.

    The run's own NetworkPolicies hold: the controller's would open the internet, and close the gateway.
    """
    return {
        **_object(TEMPLATE, pod["metadata"]),
        "spec": {
            "podTemplate": pod_template(pod),
            "networkPolicyManagement": "Unmanaged",
            "envVarsInjectionPolicy": "Disallowed",
        },
    }


def pool_of(pod: Object, replicas: int) -> Object:
    """The pool of the template whose pods are this one."""
    name = pod["metadata"]["name"]
    spec = {"replicas": replicas, "sandboxTemplateRef": {"name": name}}
    return {**_object(POOL, pod["metadata"]), "spec": spec}


def claim_of(pod: Object, pool: str) -> Object:
    """A claim on a pool in place of this pod: of its name, owner, labels and annotations."""
    metadata = pod["metadata"]
    annotations = {name: value for name, value in metadata["annotations"].items() if name != labels.NONCE}
    return {
        **_object(CLAIM, {**metadata, "annotations": annotations}),
        "spec": {"warmPoolRef": {"name": pool}},
    }


def pool_for(pod: Object) -> str | None:
    """Name of the pool that this pod might come from; None: it is of no shape that others share."""
    of_pod: Mapping[str, str] = pod["metadata"]["labels"]
    shape = of_pod.get(labels.SHAPE)
    if shape is None:
        return None
    return labels.pool_name(of_pod[names.LABEL_RUN], of_pod[labels.ORCHESTRATOR_UID], shape)


def pod_template(pod: Object) -> Object:
    """A pod as the objects of agent-sandbox hold it."""
    metadata = {part: pod["metadata"][part] for part in ("labels", "annotations")}
    return {"metadata": metadata, "spec": pod["spec"]}


def sizes(now: Mapping[str, int], own: str | None, *, most: int, room: int) -> dict[str, int]:
    """How many each pool is to keep ready, once somebody got a sandbox of one.

    Args:
        now: what each keeps, the oldest first.
        own: the one of that sandbox; it may be a new one. None: it is of no pool.
        most: all together.
        room: sandboxes that the run may have besides all that there are.
    """
    wanted, surplus = dict(now), sum(now.values()) - most
    for name, replicas in now.items():
        taken = max(0, min(replicas, surplus))
        wanted[name], surplus = replicas - taken, surplus - taken
    if own is None:
        return wanted
    if sum(wanted.values()) >= most:
        # Images that were asked for last are those that are asked for next.
        other = next((name for name, replicas in wanted.items() if name != own and replicas), None)
        if other is None:
            return wanted
        wanted[other] -= 1
    elif room <= 0:
        return wanted
    wanted[own] = wanted.get(own, 0) + 1
    return wanted


def _object(kind: Resource, metadata: Mapping[str, Any]) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": dict(metadata)}
