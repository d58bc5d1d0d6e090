"""``spec.<role>.network`` in pods: their node's network, and its cards for RDMA.

A pod on its node's network has no address of its own. So the ports that it declares are the node's, and the scheduler
keeps pods of the same ports apart; and NetworkPolicies know it, as callee or caller, by its node's address at most.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from echorl_core.problem import Problem
from echorl_manifest.models.network import Network
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_operator.names import PodRole
from echorl_operator.settings import Settings

ROLES = (PodRole.TRAINER, PodRole.INFERENCE)
"""Those that have the choice."""
LOCKING = "IPC_LOCK"
NOT_ALLOWED = (
    "this installation has no run on a node's network: settings.hostNetworkCidrs of charts/echorl has no addresses"
)
ACCEPTED = "false"


def network_of(spec: EchoRLRunSpec, role: PodRole) -> Network:
    """What a role's pods are on."""
    by_role: Mapping[PodRole, Network] = {
        PodRole.TRAINER: spec.trainer.network,
        PodRole.INFERENCE: spec.inference.network,
    }
    return by_role.get(role, Network())


def on_host(spec: EchoRLRunSpec) -> list[PodRole]:
    """Roles whose pods are on their node's network."""
    return [role for role in ROLES if network_of(spec, role).host]


def host_problems(spec: EchoRLRunSpec, settings: Settings) -> Iterator[Problem]:
    """That the installation does not allow it."""
    if not settings.host_network_cidrs:
        for role in on_host(spec):
            yield Problem(f"spec.{role}.network.host", "true", ACCEPTED, NOT_ALLOWED)


def warnings(spec: EchoRLRunSpec) -> list[str]:
    """What being on a node's network means, a line each; empty where nobody is."""
    roles = " and ".join(on_host(spec))
    if not roles:
        return []
    return [
        f"{roles}: on the network of their nodes (network.host), so no NetworkPolicy holds their pods back, and "
        "whoever reaches a node reaches their ports",
        f"{roles}: a port is taken once on a node, so no two pods of one role, of any run, share one",
    ]


def pod_fields(network: Network) -> dict[str, Any]:
    """Of a pod's spec. Names of the cluster stay known: without the policy it would ask its node's DNS."""
    return {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if network.host else {}


def variables(network: Network) -> Iterator[tuple[str, str]]:
    """For NCCL and gloo, whose ``=`` means the whole name."""
    if network.interface is not None:
        yield "NCCL_SOCKET_IFNAME", f"={network.interface}"
        yield "GLOO_SOCKET_IFNAME", network.interface
    if network.rdma is not None and network.rdma.hcas:
        yield "NCCL_IB_HCA", f"={','.join(network.rdma.hcas)}"


def devices(network: Network) -> dict[str, str]:
    """Requests and limits of a container."""
    return {} if network.rdma is None else {network.rdma.resource: str(network.rdma.count)}


def security(network: Network) -> dict[str, Any]:
    """Of a container's security context."""
    return {} if network.rdma is None else {"capabilities": {"add": [LOCKING]}}


def take_ports(spec: dict[str, Any]) -> None:
    """Make the ports that a pod on its node's network declares, in all containers, the node's: by them it is placed."""
    if spec.get("hostNetwork"):
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            for port in container.get("ports", ()):
                port["hostPort"] = port.get("containerPort")
