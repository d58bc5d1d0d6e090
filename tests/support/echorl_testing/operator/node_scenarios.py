"""Nodes that are lost, volumes that do not come, namespaces that go: pods that hang, and who removes them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from echorl_operator import names
from echorl_operator.names import PodRole
from echorl_testing.cluster.api import STRATEGIC_MERGE_PATCH
from echorl_testing.kube.watch_history import Object
from echorl_testing.operator.fault_campaign import Course, Scenario, unharmed
from echorl_testing.operator.operator_world import SPEC
from echorl_testing.operator.run_life import Life

TOLD_S = 120.0
"""A minute after the grace period of 30 s at most, on a busy machine."""
_SHORT = {"template": {"spec": {"terminationGracePeriodSeconds": 30}}}
_GC_S = 180.0
"""The pod garbage collector looks every 20 s, and trusts that a node is gone after 40 s more."""


@asynccontextmanager
async def _on_a_node(course: Course, role: PodRole, name: str, **spec: Any) -> AsyncIterator[tuple[Life, str]]:
    """A run whose pods of this name and role stand on a node of their own, that can be lost."""
    async with course.field.life() as life:
        node = await _add_node(life)
        life.cluster.node_of = lambda pod: node if _is(pod, role, name) and not life.cluster.lost else None
        try:
            async with life.operated():
                shortened = {"trainer": SPEC["trainer"] | _SHORT, "orchestrator": _SHORT}
                await life.create(**shortened, **spec)
                yield life, node
        finally:
            life.cluster.lost.clear()
            await life.api.delete(f"/api/v1/nodes/{node}")
            for pod in life.history.living(life.namespace, "Pod"):
                await life.api.delete(f"/api/v1/namespaces/{life.namespace}/pods/{pod['metadata']['name']}", grace_s=0)


async def _add_node(life: Life) -> str:
    """A node without a kubelet, that nothing is scheduled to."""
    name = f"{life.namespace}-node"
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"unschedulable": True}}
    await life.api.create("/api/v1/nodes", node)
    return name


def _is(pod: Object, role: PodRole, name: str) -> bool:
    return bool(pod["metadata"]["labels"].get(names.LABEL_ROLE) == role and pod["metadata"]["name"] == name)


def _pod_path(life: Life, name: str) -> str:
    return f"/api/v1/namespaces/{life.namespace}/pods/{name}"


async def _not_ready(life: Life, node: str) -> None:
    condition = {"type": "Ready", "status": "False", "reason": "Lost"}
    await life.api.patch(
        f"/api/v1/nodes/{node}/status", {"status": {"conditions": [condition]}}, content_type=STRATEGIC_MERGE_PATCH
    )


async def _taint(life: Life, node: str, key: str) -> None:
    """Real controllers evict every pod of the node."""
    taint = {"key": key, "value": "yes", "effect": "NoExecute"}
    await life.api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [taint]}})


async def _lose(life: Life, node: str) -> None:
    """The node's kubelet says nothing more, and its pods are evicted."""
    life.cluster.lost.add(node)
    await _not_ready(life, node)
    await _taint(life, node, "node.echorl.test/lost")


async def _told(life: Life) -> None:
    await life.until("NodeLost is told", lambda: life.condition("NodeLost").get("status") == "True", TOLD_S)
    message = life.condition("NodeLost")["message"]
    assert "one-trainer-1 does not end on" in message, message
    assert len(life.admitted()) == 2, "no pod of the next attempt is let through beside one that may be at work"


async def _hangs_until_forced(course: Course) -> str:
    async with _on_a_node(course, PodRole.TRAINER, "one-trainer-1") as (life, node):
        await life.running(1)
        await _lose(life, node)
        await _told(life)
        await life.api.delete(_pod_path(life, "one-trainer-1"), grace_s=0)
        await life.running(2, await course.patience_s())
        mended = await course.patience_s()
        await life.until("that is over", lambda: life.condition("NodeLost")["status"] == "False", mended)
        await life.finish()
        unharmed(life, [1, 1, 2, 2])
        return "NodeLost is told a minute after the grace period; attempt 2 begins once the pod is removed"


async def _forced_by_policy(course: Course) -> str:
    policy = {"maxRestarts": 2, "backoffSeconds": 0, "forceDeleteOnNodeLoss": True}
    async with _on_a_node(course, PodRole.TRAINER, "one-trainer-1", failurePolicy=policy) as (life, node):
        await life.running(1)
        await _lose(life, node)
        await life.running(2, TOLD_S + await course.patience_s())
        await life.finish()
        unharmed(life, [1, 1, 2, 2])
        return "the operator removes the pod by force a minute after its grace period; attempt 2 begins"


async def _out_of_service(course: Course) -> str:
    async with _on_a_node(course, PodRole.TRAINER, "one-trainer-1") as (life, node):
        await life.running(1)
        life.cluster.lost.add(node)
        await _not_ready(life, node)
        await _taint(life, node, "node.kubernetes.io/out-of-service")
        await life.running(2, _GC_S + await course.patience_s())
        await life.finish()
        unharmed(life, [1, 1, 2, 2])
        return "Kubernetes removes the pods; attempt 2 begins"


async def _node_gone(course: Course) -> str:
    async with _on_a_node(course, PodRole.TRAINER, "one-trainer-1") as (life, node):
        await life.running(1)
        life.cluster.lost.add(node)
        await life.api.delete(f"/api/v1/nodes/{node}")
        await life.running(2, _GC_S + await course.patience_s())
        await life.finish()
        unharmed(life, [1, 1, 2, 2])
        return "Kubernetes removes the pods of a node that is gone after about a minute; attempt 2 begins"


async def _orchestrator_lost(course: Course) -> str:
    policy = {"maxRestarts": 2, "backoffSeconds": 0, "forceDeleteOnNodeLoss": True}
    async with _on_a_node(course, PodRole.ORCHESTRATOR, "one-orchestrator", failurePolicy=policy) as (life, node):
        await life.running(1)
        await _lose(life, node)
        await life.running(2, TOLD_S + await course.patience_s())
        await life.finish()
        unharmed(life, [1, 1, 2, 2])
        await life.note("NodeLost: attempt 2")
        return "a new attempt, since the lost orchestrator may still write; its pod is removed by force"


async def _prepare_lost(course: Course) -> str:
    policy = {"maxRestarts": 2, "backoffSeconds": 0, "forceDeleteOnNodeLoss": True}
    async with _on_a_node(course, PodRole.PREPARE, "one-prepare-1", failurePolicy=policy) as (life, node):
        life.cluster.held.add(PodRole.PREPARE)
        await life.until("prepare is asked for", lambda: life.pods(PodRole.PREPARE))
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "one-prepare-1"}}
        await life.api.create(f"{_pod_path(life, 'one-prepare-1')}/binding", {**binding, "target": {"name": node}})
        await _lose(life, node)
        life.cluster.held.clear()
        await life.running(2, TOLD_S + await course.patience_s())
        await life.finish()
        unharmed(life, [2, 2])
        return "a new attempt with a prepare pod of its own"


async def _finalizer(course: Course) -> str:
    """Somebody's finalizer keeps a pod that has ended."""
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        path = _pod_path(life, "one-trainer-1")
        await life.api.patch(path, {"metadata": {"finalizers": ["echorl.test/stay"]}})
        await life.api.delete(path)
        await _told(life)
        await life.api.patch(path, {"metadata": {"finalizers": None}})
        await life.running(2, await course.patience_s())
        await life.finish()
        unharmed(life, [1, 1, 2, 2])
        return "told a minute after the grace period; attempt 2 begins once the finalizer is gone"


async def _claim_pending(course: Course) -> str:
    async with course.field.life() as life, life.operated():
        life.cluster.held.add(PodRole.PREPARE)
        # Without any node the scheduler does not look at claims.
        node = await _add_node(life)
        try:
            await life.create()
            blocked = lambda: "one-volume" in life.condition("Blocked").get("message", "")  # noqa: E731
            await life.until("the pending claim is told", blocked, await course.patience_s())
        finally:
            await life.api.delete(f"/api/v1/nodes/{node}")
        message = life.condition("Blocked")["message"]
        before = life.writes()
        await course.hold(life)
        assert life.writes() - before <= 4, "a run that waits writes nothing"
        life.cluster.held.clear()
        life.cluster.look_again()
        await life.running(1, await course.patience_s())
        mended = await course.patience_s()
        await life.until("that is over", lambda: life.condition("Blocked")["status"] == "False", mended)
        await life.finish()
        unharmed(life, [1, 1])
        return f"told: {message!r}; heals by itself"


async def _namespace_goes(course: Course, *, running: bool) -> str:
    async with course.field.life() as life, life.operated() as operator:
        if not running:
            life.cluster.held.add(PodRole.PREPARE)
        await life.create()
        if running:
            await life.running(1)
        else:
            await life.until("prepare is asked for", lambda: life.pods(PodRole.PREPARE))
        before = life.writes()
        await life.api.delete(f"/api/v1/namespaces/{life.namespace}")
        kinds = (names.KIND, "Pod", "StatefulSet", "Deployment", "Service", "ConfigMap", "PersistentVolumeClaim")
        gone = lambda: not any(life.history.living(life.namespace, kind) for kind in kinds)  # noqa: E731
        await life.until("nothing is left", gone)
        await course.hold(life, 3)
        writes = life.writes() - before
        assert writes <= 60, f"{writes} writes into a namespace that goes"
        assert not operator.breaker.open
        await life.until("nothing is left to look at", lambda: len(operator.queue) == 0)
        assert life.problems() == []
        return f"everything goes; {writes} tries to write"


async def _namespace_goes_while_running(course: Course) -> str:
    return await _namespace_goes(course, running=True)


async def _namespace_goes_while_preparing(course: Course) -> str:
    return await _namespace_goes(course, running=False)


NODES: Mapping[str, Scenario] = {
    "a rank's node is lost": _hangs_until_forced,
    "a rank's node is lost, forceDeleteOnNodeLoss": _forced_by_policy,
    "a rank's node is lost, out-of-service taint": _out_of_service,
    "a rank's node is gone": _node_gone,
    "the orchestrator's node is lost": _orchestrator_lost,
    "prepare's node is lost": _prepare_lost,
    "a finalizer keeps a rank's pod": _finalizer,
    "the claim stays Pending": _claim_pending,
    "the namespace is deleted, running": _namespace_goes_while_running,
    "the namespace is deleted, preparing": _namespace_goes_while_preparing,
}
