"""People who change or delete what the operator made, with kubectl: every kind of child."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from echorl_operator import names
from echorl_operator.cluster.resources import CHILDREN, POD
from echorl_operator.names import PodRole
from echorl_testing.fault_campaign import Course, Scenario, patience_s, unharmed
from echorl_testing.run_life import Life, is_ours
from echorl_testing.scripted_cluster import PlayedOrchestrator
from echorl_testing.watch_history import Object

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


def _path(life: Life, kind: str, name: str) -> str:
    return _RESOURCES[kind].path(life.namespace, name)


def _ours(life: Life, kind: str) -> list[Object]:
    return [one for one in life.history.living(life.namespace, kind) if is_ours(one)]


def _gang(life: Life) -> list[str]:
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


async def _edited(course: Course) -> str:
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        gang = _gang(life)
        for edit in EDITS:
            (before,) = [one for one in _ours(life, edit.kind) if _named(one, edit.name)]
            shape, name = _shape(before), before["metadata"]["name"]
            changed = await life.api.patch(_path(life, edit.kind, name), dict(edit.patch))
            assert _shape({**changed, "metadata": {**changed["metadata"], "managedFields": None}}) != shape, edit

            def healed(kind: str = edit.kind, name: str = name, shape: str = shape) -> bool:
                found = life.history.get(life.namespace, kind, name)
                return found is not None and _shape(found) == shape

            await life.until(f"{edit} is undone", healed, patience_s())
        await life.until("only the gang is left", lambda: _gang(life) == gang, patience_s())
        assert life.status()["attempt"] == 1
        before_rest = life.writes()
        await course.hold(life, 3)
        assert life.writes() - before_rest <= 2, "healed, and yet it writes"
        await life.finish()
        unharmed(life, [1, 1])
        return f"{len(EDITS)} edits are undone; the gang trains on"


def _named(one: Object, name: str) -> bool:
    found = one["metadata"]["name"]
    return bool(found == name or (name.endswith("-") and found.startswith(name)))


async def _deleted(course: Course) -> str:
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        gang, count = _gang(life), 0
        for kind in DELETED:
            before = {one["metadata"]["name"]: one["metadata"]["uid"] for one in _ours(life, kind)}
            for name in before:
                await life.api.delete(_path(life, kind, name))
            count += len(before)

            def back(kind: str = kind, before: Mapping[str, str] = before) -> bool:
                now = {one["metadata"]["name"]: one["metadata"]["uid"] for one in _ours(life, kind)}
                return now.keys() == before.keys() and not set(now.values()) & set(before.values())

            await life.until(f"every {kind} is back", back, patience_s())
        await life.running(1, patience_s())
        assert _gang(life) == gang
        await life.finish()
        assert life.admitted() == [1, 1]
        return f"{count} objects come back; the gang trains on"


async def _lost_token(course: Course) -> str:
    """A kubelet says that it cannot start a pod without the run's token."""
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        secret = _path(life, "Secret", names.token("one"))
        await life.api.delete(secret)
        await life.until("the secret is gone", lambda: not _ours(life, "Secret"))
        first = life.cluster.orchestrators["one"]
        life.cluster.held.add(PodRole.ORCHESTRATOR)
        await life.api.delete(_path(life, "Pod", "one-orchestrator"))
        await life.until("an orchestrator waits", lambda: _waiting(life))
        waiting = {"reason": "CreateContainerConfigError", "message": f'secret "{names.token("one")}" not found'}
        container = {"name": "orchestrator", "ready": False, "restartCount": 0, "image": "x", "imageID": "x"}
        status = {"phase": "Pending", "containerStatuses": [{**container, "state": {"waiting": waiting}}]}
        await life.api.patch(f"{_path(life, 'Pod', 'one-orchestrator')}/status", {"status": status})
        await life.until("the secret is back", lambda: _ours(life, "Secret"), patience_s())
        await life.api.patch(f"{_path(life, 'Pod', 'one-orchestrator')}/status", {"status": {"containerStatuses": []}})
        life.cluster.held.clear()
        life.cluster.look_again()
        await _followed(life, first)
        await life.finish()
        assert life.admitted() == [1, 1]
        return "the token is made anew once a pod lacks it"


async def _followed(life: Life, before: PlayedOrchestrator | None) -> None:
    """The operator hears of another orchestrator than the one before."""

    def followed() -> bool:
        now = life.cluster.orchestrators["one"]
        return now is not before and now.asked > 0

    await life.until("another orchestrator is followed", followed)


def _waiting(life: Life) -> bool:
    found = life.pods(PodRole.ORCHESTRATOR)
    return len(found) == 1 and "podIP" not in found[0].get("status", {})


Hand = Callable[[Life], Awaitable[None]]


async def _restarted(course: Course, hand: Hand, why: str) -> str:
    """What takes a pod of the gang away takes the gang to a new attempt, and says so."""
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        await hand(life)
        await life.running(2, patience_s() + 10)
        told = [note for note in life.notes() if note.startswith("GangRestarted: attempt 2")]
        assert told, life.notes()
        await life.finish()
        unharmed_but_remade(life)
        return f"{why}: attempt 2, told as {told[0]!r}"


def unharmed_but_remade(life: Life) -> None:
    """As ``unharmed``, but the test took children away itself."""
    assert [one for one in life.problems() if "was made" not in one] == []
    assert life.admitted() == [1, 1, 2, 2]


async def _rank_deleted(course: Course) -> str:
    async def hand(life: Life) -> None:
        await life.api.delete(_path(life, "Pod", "one-trainer-0"))

    return await _restarted(course, hand, "a rank's pod is deleted")


async def _set_deleted(course: Course) -> str:
    async def hand(life: Life) -> None:
        await life.api.delete(_path(life, "StatefulSet", "one-trainer"))

    return await _restarted(course, hand, "the StatefulSet is deleted with its pods")


async def _set_scaled(course: Course) -> str:
    async def hand(life: Life) -> None:
        scale = {"spec": {"replicas": 0}}
        await life.api.patch(f"{_path(life, 'StatefulSet', 'one-trainer')}/scale", scale)

    return await _restarted(course, hand, "the StatefulSet is scaled to 0")


async def _rank_relabelled(course: Course) -> str:
    """A pod that claims to be of another attempt is none of this gang, and the next attempt is a later one."""
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        await life.api.patch(_path(life, "Pod", "one-trainer-0"), {"metadata": {"labels": {names.LABEL_ATTEMPT: "7"}}})
        await life.running(8, patience_s() + 10)
        await life.finish()
        assert life.admitted() == [1, 1, 8, 8]
        return "the gang begins anew as attempt 8: no number is used twice"


async def _set_orphaned(course: Course) -> str:
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        gang = _gang(life)
        old = life.history.get(life.namespace, "StatefulSet", "one-trainer")
        assert old is not None
        await life.api.delete(_path(life, "StatefulSet", "one-trainer"), propagation="Orphan")

        def adopted() -> bool:
            new = life.history.get(life.namespace, "StatefulSet", "one-trainer")
            owner = new["metadata"]["uid"] if new is not None else ""
            owners = [pod["metadata"].get("ownerReferences", [{}])[0].get("uid") for pod in life.pods(PodRole.TRAINER)]
            return owner != old["metadata"]["uid"] and owners == [owner, owner]

        await life.until("another StatefulSet has the same pods", adopted, patience_s())
        assert _gang(life) == gang
        await life.running(1)
        await life.finish()
        assert life.admitted() == [1, 1]
        return "another StatefulSet adopts the pods; the gang trains on"


async def _single_pods(course: Course) -> str:
    """Engine, orchestrator and prepare pods are deleted; none of them is the gang's."""
    async with course.field.life() as life, life.operated():
        life.cluster.held.add(PodRole.PREPARE)
        await life.create()
        for role, attempt in ((PodRole.PREPARE, None), (PodRole.INFERENCE, 1), (PodRole.ORCHESTRATOR, 1)):
            if attempt is not None:
                life.cluster.held.clear()
                life.cluster.look_again()
                await life.running(attempt)
            await life.until(f"{role} is there", lambda role=role: life.pods(role))
            first = life.cluster.orchestrators.get("one")
            old = life.pods(role)[0]["metadata"]
            await life.api.delete(_path(life, "Pod", old["name"]))

            def another(role: PodRole = role, uid: str = old["uid"], count: int = len(life.pods(role))) -> bool:
                uids = [pod["metadata"]["uid"] for pod in life.pods(role)]
                return uid not in uids and len(uids) == count

            await life.until(f"another {role}", another, patience_s())
        await _followed(life, first)
        await life.finish()
        unharmed(life, [1, 1])
        return "each is made anew alone; the gang trains on"


async def _claim_deleted(course: Course) -> str:
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        await life.api.delete(_path(life, "PersistentVolumeClaim", "one-volume"))
        await life.until("the claim is gone", lambda: not _ours(life, "PersistentVolumeClaim"))
        await life.lose_a_rank(1)
        await life.running(2)
        assert _ours(life, "PersistentVolumeClaim")
        await life.finish()
        assert life.admitted() == [1, 1, 2, 2]
        return "made anew with the next attempt, whose prepare tells the step it begins at"


async def _status_lost(course: Course) -> str:
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        run = await life.api.get(f"{life.runs}/one")
        run.pop("status")
        await life.api.request("PUT", f"{life.runs}/one/status", {**run, "status": {}})
        await life.running(2, patience_s() + 10)
        await life.finish()
        unharmed(life, [1, 1, 2, 2])
        return "the attempt is found in labels; the gang begins anew as the next one"


HANDS: Mapping[str, Scenario] = {
    "people edit children": _edited,
    "people delete children": _deleted,
    "people delete the token's Secret": _lost_token,
    "people delete a rank's pod": _rank_deleted,
    "people delete the StatefulSet": _set_deleted,
    "people delete the StatefulSet, not its pods": _set_orphaned,
    "people scale the StatefulSet to 0": _set_scaled,
    "people relabel a rank's pod": _rank_relabelled,
    "people delete prepare, engine, orchestrator": _single_pods,
    "people delete the claim": _claim_deleted,
    "people clear the status": _status_lost,
}
