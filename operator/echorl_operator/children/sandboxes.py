"""Sandboxes in pods, as far as the operator has a part in them: whether there is a broker, and who reaches what."""

from collections.abc import Iterator

from echorl_core.problem import Problem
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_operator.settings import Settings


def are_pods(spec: EchoRLRunSpec) -> bool:
    """Whether the run's sandboxes are pods."""
    return spec.sandboxes is not None and spec.sandboxes.provider != "process"


def broker_problems(spec: EchoRLRunSpec, settings: Settings) -> Iterator[Problem]:
    """That nobody makes them."""
    if spec.sandboxes is None or not are_pods(spec):
        return
    path, provider = "spec.sandboxes.provider", spec.sandboxes.provider
    if settings.broker_url is None:
        reason = "this installation has no broker: sandboxes.enabled of charts/echorl is false"
        yield Problem(path, provider, "process", reason)
    elif provider == "agent-sandbox" and not settings.agent_sandbox:
        reason = "this installation has no agent-sandbox: sandboxes.agentSandbox of charts/echorl is false"
        yield Problem(path, provider, "pod", reason)
