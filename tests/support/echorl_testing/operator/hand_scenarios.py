"""People who change or delete what the operator made, with kubectl: every kind of child."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echorl_operator import names
from echorl_operator.kube.resources import CHILDREN, POD
from echorl_operator.names import PodRole
from echorl_testing.kube.watch_history import Object
from echorl_testing.operator.fault_campaign import Course, Scenario, unharmed
from echorl_testing.operator.run_life import Life, is_ours
from echorl_testing.operator.scripted_cluster import PlayedOrchestrator

_RESOURCES = {one.kind: one for one in (POD, *CHILDREN)}
_MANAGED = {"metadata": {"labels": {names.LABEL_MANAGED_BY: None}}}
"""Takes away the label by which the operator finds its children."""


@dataclass(frozen=True)
class Edit:
    """One change of one child, by merge patch."""

    kind: str
    name: str
    """An end of the child's name is enough."""
    patch: Mapping[str, Any]


EDITS = (
    Edit("Service", "one-trainer", {"spec": {"publishNotReadyAddresses": False}}),
    Edit("Service", "one-orchestrator", _MANAGED),
    Edit("ServiceAccount", "one-trainer", {"automountServiceAccountToken": True}),
    Edit("ServiceAccount", "one-inference", _MANAGED),
    Edit("NetworkPolicy", "one-default-deny", {"spec": {"policyTypes": ["Ingress"]}}),
    Edit("NetworkPolicy", "one-trainer", {"spec": {"ingress": [{}]}}),
    Edit("ConfigMap", "one-trainer-", _MANAGED),
    Edit("ConfigMap", "one-orchestrator-", {"metadata": {"annotations": {names.ANNOTATION_HASH: "other"}}}),
    Edit("ControllerRevision", "one-1-1", _MANAGED),
    Edit("Deployment", "one-inference", {"spec": {"replicas": 5}}),
    Edit("Deployment", "one-inference", {"spec": {"progressDeadlineSeconds": 1}}),
    Edit("StatefulSet", "one-trainer", {"spec": {"updateStrategy": {"type": "RollingUpdate"}}}),
    Edit("StatefulSet", "one-trainer", {"spec": {"replicas": 3}}),
    Edit("StatefulSet", "one-trainer", {"metadata": {"labels": {names.LABEL_MANAGED_BY: None}}}),
)
"""What heals without a pod of the gang being touched."""
DELETED = ("Service", "ServiceAccount", "NetworkPolicy", "ConfigMap", "ControllerRevision", "Deployment")
"""Kinds of which every object is taken away, and comes back without a pod of the gang being touched."""


def child_path(life: Life, kind: str, name: str) -> str:
    return _RESOURCES[kind].path(life.namespace, name)


def ours(life: Life, kind: str) -> list[Object]:
    return [one for one in life.history.living(life.namespace, kind) if is_ours(one)]


def gang_of(life: Life) -> list[str]:
    return [pod["metadata"]["uid"] for pod in life.pods(PodRole.TRAINER)]


def _shape(found: Object) -> str:
    """What an object is like, but for what the API server and its controllers write."""
    metadata = found["metadata"]
    kept = {key: metadata.get(key) for key in ("name", "labels", "annotations", "ownerReferences")}
    kept["annotations"] = {
        key: value for key, value in (kept["annotations"] or {}).items() if not key.startswith("deployment.")
    }
    rest = {key: value for key, value in found.items() if key not in ("metadata", "status")}
    rest.get("spec", {}).pop("clusterIP", None)
    return json.dumps([kept, rest], sort_keys=True)


def _version(found: Object) -> int:
    return int(found["metadata"]["resourceVersion"])


async def _edited(course: Course) -> str:
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        gang = gang_of(life)
        for edit in EDITS:
            (before,) = [one for one in ours(life, edit.kind) if _named(one, edit.name)]
            shape, name = _shape(before), before["metadata"]["name"]
            changed = await life.api.patch(child_path(life, edit.kind, name), dict(edit.patch))
            assert _shape({**changed, "metadata": {**changed["metadata"], "managedFields": None}}) != shape, edit
            version = _version(changed)

            def healed(kind: str = edit.kind, name: str = name, shape: str = shape, version: int = version) -> bool:
                found = life.history.get(life.namespace, kind, name)
                # The history may not have heard of the edit yet.
                return found is not None and _version(found) > version and _shape(found) == shape

            await life.until(f"{edit} is undone", healed, await course.patience_s())
        await life.until("only the gang is left", lambda: gang_of(life) == gang, await course.patience_s())
        assert life.status()["attempt"] == 1
        await _comes_to_rest(course, life)
        await life.finish()
        unharmed(life, [1, 1])
        return f"{len(EDITS)} edits are undone; the gang trains on"


async def _comes_to_rest(course: Course, life: Life) -> None:
    """Return once it hardly writes; counts of pods that come and go after the last edit are told for a while."""
    deadline = time.monotonic() + await course.patience_s()
    while True:
        before = life.writes()
        await course.hold(life, 3)
        if life.writes() - before <= 2:
            return
        assert time.monotonic() < deadline, "healed, and yet it writes"


def _named(one: Object, name: str) -> bool:
    found = one["metadata"]["name"]
    return bool(found == name or (name.endswith("-") and found.startswith(name)))


async def _deleted(course: Course) -> str:
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        gang, count = gang_of(life), 0
        for kind in DELETED:
            before = {one["metadata"]["name"]: one["metadata"]["uid"] for one in ours(life, kind)}
            for name in before:
                await life.api.delete(child_path(life, kind, name))
            count += len(before)

            def back(kind: str = kind, before: Mapping[str, str] = before) -> bool:
                now = {one["metadata"]["name"]: one["metadata"]["uid"] for one in ours(life, kind)}
                return now.keys() == before.keys() and not set(now.values()) & set(before.values())

            await life.until(f"every {kind} is back", back, await course.patience_s())
        await life.running(1, await course.patience_s())
        assert gang_of(life) == gang
        await life.finish()
        assert life.admitted() == [1, 1]
        return f"{count} objects come back; the gang trains on"


async def _lost_token(course: Course) -> str:
    """A kubelet says that it cannot start a pod without the run's token."""
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        secret = child_path(life, "Secret", names.token("one"))
        await life.api.delete(secret)
        await life.until("the secret is gone", lambda: not ours(life, "Secret"))
        first = life.cluster.orchestrators["one"]
        life.cluster.held.add(PodRole.ORCHESTRATOR)
        await life.api.delete(child_path(life, "Pod", "one-orchestrator"))
        await life.until("an orchestrator waits", lambda: _waiting(life))
        waiting = {"reason": "CreateContainerConfigError", "message": f'secret "{names.token("one")}" not found'}
        container = {"name": "orchestrator", "ready": False, "restartCount": 0, "image": "x", "imageID": "x"}
        status = {"phase": "Pending", "containerStatuses": [{**container, "state": {"waiting": waiting}}]}
        of_pod = f"{child_path(life, 'Pod', 'one-orchestrator')}/status"
        await life.api.patch(of_pod, {"status": status})
        await life.until("the secret is back", lambda: ours(life, "Secret"), await course.patience_s())
        await life.api.patch(of_pod, {"status": {"containerStatuses": []}})
        life.cluster.held.clear()
        life.cluster.look_again()
        await followed(life, first)
        await life.finish()
        assert life.admitted() == [1, 1]
        return "the token is made anew once a pod lacks it"


async def followed(life: Life, before: PlayedOrchestrator | None) -> None:
    """The operator hears of another orchestrator than the one before."""

    def followed() -> bool:
        now = life.cluster.orchestrators["one"]
        return now is not before and now.asked > 0

    await life.until("another orchestrator is followed", followed)


def _waiting(life: Life) -> bool:
    found = life.pods(PodRole.ORCHESTRATOR)
    return len(found) == 1 and "podIP" not in found[0].get("status", {})


HANDS: Mapping[str, Scenario] = {
    "people edit children": _edited,
    "people delete children": _deleted,
    "people delete the token's Secret": _lost_token,
}
