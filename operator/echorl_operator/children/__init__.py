"""The manifest's compiler: from a run and where it is placed to role configs, and to Kubernetes objects. Pure."""

from echorl_manifest.compile.placement import EnginePlacement, Placement, example_placement
from echorl_manifest.compile.role_configs import role_configs
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
from echorl_operator.settings import Settings

__all__ = [
    "Arrow",
    "EnginePlacement",
    "Placement",
    "Rendering",
    "RevisionTooLarge",
    "Settings",
    "always_refused",
    "arrows",
    "cluster_placement",
    "cluster_problems",
    "common",
    "example_placement",
    "from_revision",
    "inference_deployment",
    "orchestrator_config",
    "orchestrator_pod",
    "overlay_problems",
    "prepare_pod",
    "render",
    "role_configs",
    "spec_of",
    "to_revision",
    "token_secret",
    "trainer_set",
]
