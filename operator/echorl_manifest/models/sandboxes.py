"""spec.sandboxes: what agents and graders run in."""

from typing import Annotated, Literal

from pydantic import Field

from echorl_manifest.models.base import ApiModel, Duration, Quantity


class SandboxResources(ApiModel):
    """The most that one sandbox may use; an environment may ask for less."""

    cpu: Annotated[float, Field(gt=0, le=1024)] = 1.0
    """Cores. ``process`` bounds none: what runs there comes after the run's own processes."""
    memory: Quantity = "2Gi"
    """Of all its processes together."""
    disk: Quantity = "2Gi"
    """Of everything that is written, wherever; ``process`` holds it in memory."""
    processes: Annotated[int, Field(ge=8, le=65536)] = 512
    """At the same time; ``process`` uses two of them for every command. In pods threads count too, and who has
    more is ended."""


class Sandboxes(ApiModel):
    """What agents and graders of the environments run in. Only environments that ask for sandboxes use them."""

    provider: Literal["process", "pod", "agent-sandbox"] = "process"
    """Who makes them. ``process``: bubblewrap; ``pod``: a cluster, a pod for each; ``agent-sandbox``: the same, by that
    controller, which the installation must use."""
    resources: SandboxResources = SandboxResources()
    """The most that one may use."""
    concurrency: Annotated[int, Field(ge=1, le=65536)] = 16
    """Episodes that have sandboxes at the same time, of all environments; others wait in the orchestrator."""
    warm_replicas: Annotated[int, Field(ge=0, le=4096)] = 0
    """Pods that are kept ready, of the images that were asked for last; for ``agent-sandbox`` only of those of agents
    that several have at a time. They count against what the run may have at once."""
    ttl: Duration = "1h"
    """The longest that one lives, whoever forgot it."""
