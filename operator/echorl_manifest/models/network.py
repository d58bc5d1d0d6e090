"""spec.trainer.network and spec.inference.network: whose network a role's pods are on, and cards for RDMA."""

from typing import Annotated

from pydantic import Field

from echorl_manifest.models.base import Accepts, ApiModel

Interface = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=15),
    Accepts("the name of a network interface: at most 15 letters, digits, '_', '.' and '-'"),
]
ExtendedResource = Annotated[
    str,
    Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=317),
    Accepts("a resource of a device plug-in, such as rdma/hca_shared_devices_a"),
]
Hca = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*(:[0-9]{1,3})?$", max_length=64),
    Accepts("the name of a card such as mlx5_0, or of one of its ports such as mlx5_0:1"),
]


class Rdma(ApiModel):
    """RDMA, with the capability ``IPC_LOCK``. The namespace must enforce Pod Security ``privileged``."""

    resource: ExtendedResource
    """Of the nodes' device plug-in."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    """Of it, for each pod."""
    hcas: Annotated[tuple[Hca, ...], Field(strict=False, max_length=32)] = ()
    """Cards that NCCL uses, by their whole names (``NCCL_IB_HCA``). Default: NCCL's choice."""


class Network(ApiModel):
    """Network of the pods."""

    host: bool = False
    """Whether they are on their node's network. The installation must allow it, and the namespace enforce Pod Security
    ``privileged``. NetworkPolicies do not hold such pods back."""
    interface: Interface | None = None
    """That NCCL and gloo connect by (``NCCL_SOCKET_IFNAME``, ``GLOO_SOCKET_IFNAME``). Default: their choice."""
    rdma: Rdma | None = None
    """Cards of the node."""
