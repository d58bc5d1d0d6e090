"""Engines that the kubelet has started again in their pods: nobody decides that, and people want to see it."""

from echorl_operator.names import PodRole
from echorl_operator.plan.draft import Draft


def count_restarts(draft: Draft) -> None:
    """Add to the run's restarts what pods of engines count beyond what was added before."""
    pods = draft.observed.of(PodRole.INFERENCE)
    counts = {pod.meta.name: sum(container.restarts for container in pod.containers) for pod in pods}
    before = draft.memory.engine_restarts
    counted = {name: max(count, before.get(name, 0)) for name, count in counts.items()}
    if fresh := sum(count - before.get(name, 0) for name, count in counted.items()):
        role = str(PodRole.INFERENCE)
        draft.remember(restarts={**draft.memory.restarts, role: draft.memory.restarts.get(role, 0) + fresh})
    draft.remember(engine_restarts={name: count for name, count in counted.items() if count})
