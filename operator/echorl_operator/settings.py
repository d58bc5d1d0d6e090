"""What an operator's installation decides for all runs: images, default resources, how to reach DNS and monitoring."""

from ipaddress import ip_network
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from echorl_manifest.models.base import Accepts, ApiModel, DnsLabel, ObjectName, Text
from echorl_operator.names import LABEL_COMPONENT, LABEL_NAME
from echorl_operator.quantities import canonical

LABEL_NAMESPACE = "kubernetes.io/metadata.name"
QUANTITY = r"^([0-9]+([.][0-9]*)?|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$"
"""What a quantity looks like, to those who can only match a pattern."""


def _is_cidr(text: str) -> str:
    if "/" not in text:
        raise ValueError(text)
    ip_network(text)
    return text


Quantity = Annotated[
    str,
    AfterValidator(canonical),
    # For the chart's schema of values; what counts here is ``canonical``.
    Field(json_schema_extra={"pattern": QUANTITY}),
    Accepts("a Kubernetes quantity such as 500m or 16Gi"),
]
Cidr = Annotated[
    str,
    AfterValidator(_is_cidr),
    Field(max_length=64, json_schema_extra={"pattern": r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"}),
    Accepts("a range of addresses such as 10.0.0.0/16"),
]
Labels = dict[str, str]
Quantities = dict[str, Quantity]


class SettingsPart(ApiModel):
    """Base of all parts: camelCase keys in the settings file, field names in code."""

    model_config = ConfigDict(populate_by_name=True)


class Images(SettingsPart):
    """Default images by role; ``null``: ``echorl/<role>:<operator's version>``."""

    trainer: Text | None = None
    """Of trainer pods."""
    inference: Text | None = None
    """Of engines with GPUs."""
    inference_cpu: Text | None = None
    """Of engines without; default ``echorl/inference-cpu``."""
    orchestrator: Text | None = None
    """Of the orchestrator."""


class RoleDefaults(SettingsPart):
    """What a role's container gets unless the run's template says otherwise."""

    requests: Quantities = {}
    """Of every container."""
    requests_per_gpu: Quantities = {}
    """On top, for each of its GPUs."""
    limits: Quantities = {}
    """Memory above this ends the container. Absent: none, so that no run dies of a limit that it did not choose."""
    scratch: Quantity = "20Gi"
    """Most that home, caches, temporary files and spooled weights may take of the node's disk."""
    shared_memory: Quantity | None = None
    """Size of ``/dev/shm``; absent: the container runtime's. What is used of it counts as memory."""
    shared_memory_per_gpu: Quantity = "2Gi"
    """On top, for each GPU."""


class Selector(SettingsPart):
    """Pods of other namespaces, by labels."""

    namespace_labels: Labels = {}
    """Of their namespaces; empty: all namespaces."""
    pod_labels: Labels = {}
    """Of the pods; empty: all pods of these namespaces."""


class Dns(Selector):
    """Where pods send DNS queries."""

    namespace_labels: Labels = {LABEL_NAMESPACE: "kube-system"}
    """Of the cluster DNS's namespace."""
    pod_labels: Labels = {"k8s-app": "kube-dns"}
    """Of the cluster DNS's pods."""
    cidrs: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Addresses besides, such as that of a node-local cache."""


class Toleration(SettingsPart):
    """A taint that pods with GPUs tolerate, with any value."""

    key: Text
    """Of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"
    """Of the taint."""


class Settings(SettingsPart):
    """One installation."""

    operator_version: Text
    """Of the operator; stands in every revision, and is the tag of default images."""
    operator_namespace: DnsLabel = "echorl-system"
    """Where the operator runs."""
    operator_labels: Labels = {LABEL_NAME: "echorl", LABEL_COMPONENT: "operator"}
    """Of the operator's pods."""
    broker_url: Text | None = None
    """Where orchestrators ask for sandboxes in pods; absent: this installation has none."""
    broker_labels: Labels = {LABEL_NAME: "echorl", LABEL_COMPONENT: "broker"}
    """Of the broker's pods, in the operator's namespace."""
    agent_sandbox: bool = False
    """Whether that broker has sandboxes made by agent-sandbox too."""
    images: Images = Images()
    """Default images."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """Of all our containers."""
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(strict=False)] = ()
    """Registry credentials for default images; they must be in each run's namespace."""
    master_key_path: Text = "/var/run/secrets/echorl.dev/master-key"
    """File with the key that the runs' tokens are derived from. Only named here, never read."""
    monitoring: Selector = Selector(namespace_labels={LABEL_NAMESPACE: "monitoring"})
    """Who may scrape metrics."""
    dns: Dns = Dns()
    """Where pods send DNS queries."""
    gpu_resource: Text = "nvidia.com/gpu"
    """Name of the nodes' resource that ``gpusPerReplica`` counts."""
    gpu_tolerations: Annotated[tuple[Toleration, ...], Field(strict=False)] = (Toleration(key="nvidia.com/gpu"),)
    """Taints of GPU nodes."""
    host_network_cidrs: Annotated[tuple[Cidr, ...], Field(strict=False)] = ()
    """Addresses of nodes that runs may be on the network of (``network.host``); empty: none may."""
    trainer: RoleDefaults = RoleDefaults(
        requests={"cpu": "500m", "memory": "2Gi"},
        requests_per_gpu={"cpu": "2", "memory": "8Gi"},
        scratch="200Gi",
        shared_memory="1Gi",
    )
    """Trainer containers."""
    inference: RoleDefaults = RoleDefaults(
        requests={"cpu": "500m", "memory": "2Gi"},
        requests_per_gpu={"cpu": "2", "memory": "8Gi"},
        scratch="200Gi",
        shared_memory="1Gi",
    )
    """Engine containers."""
    orchestrator: RoleDefaults = RoleDefaults(requests={"cpu": "250m", "memory": "1Gi"})
    """The orchestrator's container."""
    prepare: RoleDefaults = RoleDefaults(requests={"cpu": "250m", "memory": "512Mi"})
    """The container that prepares an attempt."""
    storage_size: Quantity = "500Gi"
    """Of a claim whose run names no size."""
    hub_endpoint: Text | None = None
    """Base URL that models are fetched from; absent: the hub client's own default, by HTTPS."""
    disruption_budgets: bool = False
    """Whether trainer and orchestrator get PodDisruptionBudgets, which keep nodes from being drained meanwhile."""
    bind_address: Text = "0.0.0.0"  # noqa: S104 - pods are reached at their own address
    """Address that roles listen on; ``::`` in clusters with IPv6."""
    start_deadline_seconds: Annotated[int, Field(ge=60)] = 1800
    """Time a role may take from its container's start to its first answer: images are there, models are loaded."""
