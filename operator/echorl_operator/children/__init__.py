"""What a run is made of in a cluster: Kubernetes objects as plain mappings, from a manifest and the settings. Pure."""

from echorl_operator.children.arrows import Arrow
from echorl_operator.children.assembly import (
    always_refused,
    cluster_problems,
    common,
    inference_deployment,
    orchestrator_pod,
    prepare_pod,
    render,
    token_secret,
    trainer_set,
)
from echorl_operator.children.cluster_placement import cluster_placement
from echorl_operator.children.overlay_rules import overlay_problems
from echorl_operator.children.rendering import Rendering, arrows, orchestrator_config, spec_of
from echorl_operator.children.revision import RevisionTooLarge, from_revision, to_revision

__all__ = [
    "Arrow",
    "Rendering",
    "RevisionTooLarge",
    "always_refused",
    "arrows",
    "cluster_placement",
    "cluster_problems",
    "common",
    "from_revision",
    "inference_deployment",
    "orchestrator_config",
    "orchestrator_pod",
    "overlay_problems",
    "prepare_pod",
    "render",
    "spec_of",
    "to_revision",
    "token_secret",
    "trainer_set",
]
