"""Headless Services: names for pods. A virtual address could not reach one engine, or one rank."""

from echorl_operator import names
from echorl_operator.children import cluster_placement as places
from echorl_operator.children import trainer
from echorl_operator.children.target import Object, Target
from echorl_operator.names import PodRole


def services(target: Target) -> list[Object]:
    """Make the Services of trainer, engines and orchestrator.

    Addresses of pods that are not ready are given too: ranks meet before they are ready, engines get their weights
    before, and the orchestrator says why it is not.
    """
    return [
        _headless(target, names.trainer(target.name), PodRole.TRAINER, trainer.ports(target)),
        _headless(target, names.inference(target.name), PodRole.INFERENCE, {"http": places.ENGINE_PORT}),
        _headless(target, names.orchestrator(target.name), PodRole.ORCHESTRATOR, {"http": places.ORCHESTRATOR_PORT}),
    ]


def _headless(target: Target, name: str, role: PodRole, ports: dict[str, int]) -> Object:
    return {
        **target.child("v1", "Service", name, role),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": target.selector(role),
            "ports": [
                {"name": port, "port": number, "protocol": "TCP", "targetPort": number}
                for port, number in ports.items()
            ],
        },
    }
