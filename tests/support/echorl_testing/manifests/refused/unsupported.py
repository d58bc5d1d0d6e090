"""What nothing carries out yet, and what only a cluster carries out."""

from typing import Any

from echorl_testing.manifests.documents import shortest, with_value
from echorl_testing.manifests.refused.case import ENV, EVAL

NOT_SUPPORTED_YET: list[tuple[str, Any]] = [
    (f"{ENV}.type", "agent:coder"),
]
CLUSTER_ONLY: list[tuple[str, Any]] = [
    ("spec.model.tokenSecretName", "hub"),
    ("spec.model.revision", "v2"),
    ("spec.suspend", True),
    ("spec.sandboxes.provider", "pod"),
    ("spec.sandboxes.provider", "agent-sandbox"),
    ("spec.stallPolicy.action", "Fail"),
    ("spec.code.configMap", "code"),
    (f"{ENV}.type", "openenv:registry.example.org/games/wordle:1"),
]


def unsupported_base() -> dict[str, Any]:
    """A short manifest that each of ``NOT_SUPPORTED_YET`` and ``CLUSTER_ONLY`` is one change to."""
    document = with_value(shortest(), "spec.algorithm.filters", [{"type": "zeroAdvantage"}])
    document = with_value(document, "spec.sandboxes", {})
    return with_value(document, "spec.environments.eval", [EVAL])
