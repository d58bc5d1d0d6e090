"""Sandboxes in pods, as far as the operator has a part in them: whether there is a broker, and who reaches what."""

from collections.abc import Iterator

from echorl_core.problem import Problem
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_operator.settings import Settings


def are_pods(spec: EchoRLRunSpec) -> bool:
    """Whether the run's sandboxes are pods."""
    return spec.sandboxes is not None and spec.sandboxes.provider == "pod"


def broker_problems(spec: EchoRLRunSpec, settings: Settings) -> Iterator[Problem]:
    """That nobody makes them."""
    if are_pods(spec) and settings.broker_url is None:
        reason = "this installation has no broker: sandboxes.enabled of charts/echorl is false"
        yield Problem("spec.sandboxes.provider", "pod", "process", reason)
