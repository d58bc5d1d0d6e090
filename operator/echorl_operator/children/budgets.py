"""PodDisruptionBudgets of trainer and orchestrator, where the installation asks for them.

Integer ``minAvailable``: anything else is computed from the owner's scale, which for a run is the number of engines.
"""

from echorl_operator import names
from echorl_operator.children.target import Object, Target
from echorl_operator.names import PodRole


def disruption_budgets(target: Target) -> list[Object]:
    """None unless the settings say so. Unhealthy pods may always be evicted."""
    if not target.settings.disruption_budgets:
        return []
    trainer, orchestrator = names.trainer(target.name), names.orchestrator(target.name)
    return [
        _budget(target, trainer, PodRole.TRAINER, target.spec.trainer.replicas),
        _budget(target, orchestrator, PodRole.ORCHESTRATOR, 1),
    ]


def _budget(target: Target, name: str, role: PodRole, at_least: int) -> Object:
    return {
        **target.child("policy/v1", "PodDisruptionBudget", name, role),
        "spec": {
            "minAvailable": at_least,
            "selector": {"matchLabels": target.selector(role)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
