"""Pods that are deleted and do not end: their node may be gone, and their processes and GPUs still at work.

They are removed by force only where the manifest says so: a force-deleted pod's processes may still write.
"""

from collections.abc import Iterable

from echorl_operator.names import PodRole
from echorl_operator.observed.records import PodRecord
from echorl_operator.plan.actions import Delete
from echorl_operator.plan.builder import PlanBuilder

LOST_NODE_S = 60.0
"""A pod that is still there so long after its grace period hangs on a node that is gone."""
_HINT = "delete the pods by force, taint the node out-of-service, or set failurePolicy.forceDeleteOnNodeLoss"


def hung(builder: PlanBuilder, pods: Iterable[PodRecord]) -> list[PodRecord]:
    """Find the pods that hang. The run is looked at again when another one might."""
    hanging = []
    for pod in pods:
        if pod.meta.deleted_at is None:
            continue
        if builder.now > pod.meta.deleted_at + LOST_NODE_S:
            hanging.append(pod)
        else:
            builder.wake(pod.meta.deleted_at + LOST_NODE_S + 1)
    return hanging


def handle_hung_pods(builder: PlanBuilder, pods: list[PodRecord]) -> str:
    """Remove hung pods by force if the manifest says so, else tell; returns what there is to say of them."""
    nodes = ", ".join(sorted({pod.node or "no node" for pod in pods}))
    listed = ", ".join(pod.meta.name for pod in pods[:3]) + (" ..." if len(pods) > 3 else "")
    why = f"{listed} does not end on {nodes}: the node may be lost, and its GPUs still at work"
    if builder.observed.run.block("failurePolicy").get("forceDeleteOnNodeLoss") is True:
        builder.do(*(Delete("v1", "Pod", pod.meta.name, pod.meta.uid, why, grace_s=0) for pod in pods))
        why = f"{why}; removed by force"
        builder.problem("NodeLost", "ForceDeleted", why)
        return why
    builder.problem("NodeLost", "PodsHang", f"{why}; {_HINT}")
    return f"{why}; {_HINT}"


def handle_hung_engines(builder: PlanBuilder) -> None:
    """Engines that hang hold up nobody, as their Deployment has made others; they may still hold GPUs."""
    if hanging := hung(builder, builder.pods(PodRole.INFERENCE)):
        handle_hung_pods(builder, hanging)


def lost_alone(builder: PlanBuilder) -> str | None:
    """Why the attempt cannot go on although its gang is whole; None if it can.

    A pod of one name for the whole attempt hangs. What takes its place must be of another attempt: the old process may
    still be at work on the volume, and only the attempt fences it off.
    """
    single = (PodRole.ORCHESTRATOR, PodRole.PREPARE)
    pods = [pod for pod in builder.observed.pods if pod.role in single and pod.attempt == builder.memory.attempt]
    hanging = hung(builder, pods)
    return f"{hanging[0].meta.name} does not end on {hanging[0].node or 'its node'}" if hanging else None
