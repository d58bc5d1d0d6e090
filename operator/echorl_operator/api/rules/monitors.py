"""What monitors need of each other's fields. Pure functions of a typed spec."""

from collections.abc import Iterator

from echorl_operator.api.rules.finding import Finding, finding
from echorl_operator.api.run import EchoRLRunSpec

WITHOUT_PROJECT = "only with project: without one there is no W&B"


def monitor_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """Fields of W&B that mean nothing because it is off."""
    wandb, path = spec.monitors.wandb, "spec.monitors.wandb"
    if wandb.project is not None:
        return
    values = {"entity": wandb.entity, "baseUrl": wandb.base_url, "secretName": wandb.secret_name}
    for key, value in values.items():
        if value is not None:
            yield finding(f"{path}.{key}", value, "no value", WITHOUT_PROJECT, also=(f"{path}.project",))
    if wandb.mode != "online":
        yield finding(f"{path}.mode", wandb.mode, "online", WITHOUT_PROJECT, also=(f"{path}.project",))
