"""The engines' Deployment. Engines outlive attempts: they are told the attempt with the weights, and carry none."""

from echorl_operator import names
from echorl_operator.children import cluster_placement as places
from echorl_operator.children import pods, storage, variables
from echorl_operator.children.target import Object, Target
from echorl_operator.names import PodRole

ROLE = PodRole.INFERENCE
GRACE_S = 60
"""For the requests that run; what is left of them goes on at other engines."""
UNHEALTHY_S = 60.0
"""Without a good answer before an engine is started again."""
_MARGIN_S = 600
"""Seconds to pull an image, on top of those that an engine may take to load, before the Deployment counts as stuck."""


def inference_deployment(target: Target, config: str) -> Object:
    """The Deployment without replicas. ``config``: name of the ConfigMap with the engines' config.

    One engine is replaced at a time and none is added for it: its GPUs are not there twice.
    """
    return {
        **target.child("apps/v1", "Deployment", names.inference(target.name), ROLE),
        "spec": {
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "progressDeadlineSeconds": target.settings.start_deadline_seconds + _MARGIN_S,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": target.selector(ROLE)},
            "template": pods.pod_template(target, _role(target, config)),
        },
    }


def _role(target: Target, config: str) -> pods.Role:
    on_cpu = target.gpus(ROLE) == 0
    return pods.Role(
        role=ROLE,
        image=target.spec.inference.image or target.image("inference_cpu" if on_cpu else "inference"),
        command=[
            *("python", "-P", "-m", "echorl_vllm"),
            *("--config", f"{pods.CONFIG}/inference.json", "--work", f"{pods.WORK}/engine"),
        ],
        config=config,
        env=[
            *variables.identity(target, attempt=False, token=True),
            variables.field_variable("VLLM_HOST_IP", "status.podIP"),
        ],
        mounts=storage.mounts(target, ROLE),
        volumes=storage.volumes(target, ROLE),
        ports={"http": places.ENGINE_PORT},
        probes=pods.probes(target, "/health", "http", unhealthy_s=UNHEALTHY_S),
        grace_s=GRACE_S,
        restart_policy="Always",
    )
