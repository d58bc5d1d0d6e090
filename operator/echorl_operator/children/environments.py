"""Servers of environments that are images: a Deployment and a Service each; whole, since no attempt changes them."""

import math
from collections.abc import Iterator

from echorl_manifest.models.environments import Environment, Server
from echorl_operator import names
from echorl_operator.children import pods, variables
from echorl_operator.children.cluster_placement import ENVIRONMENT_PORT, served
from echorl_operator.children.stored import stored
from echorl_operator.children.target import Object, Target
from echorl_operator.names import PodRole

ROLE = PodRole.ENVIRONMENT
_SCRATCH = "10Gi"
"""Of ``/tmp``, the only place that a server can write to."""


def environment_servers(target: Target) -> Iterator[Object]:
    """Make a Deployment and a Service for every environment that is an image."""
    for environment in served(target.spec):
        yield _deployment(target, environment)
        yield _service(target, environment)


def _head(target: Target, environment: Environment, api_version: str, kind: str) -> Object:
    head = target.child(api_version, kind, names.environment(target.name, environment.name), ROLE)
    head["metadata"]["labels"] = _labels(target, environment)
    return head


def _labels(target: Target, environment: Environment) -> dict[str, str]:
    return {**target.labels(ROLE), names.LABEL_ENVIRONMENT: environment.name}


def _selector(target: Target, environment: Environment) -> dict[str, str]:
    return {**target.selector(ROLE), names.LABEL_ENVIRONMENT: environment.name}


def _deployment(target: Target, environment: Environment) -> Object:
    return {
        **_head(target, environment, "apps/v1", "Deployment"),
        "spec": {
            "replicas": (environment.server or Server()).replicas,
            # A server holds no GPU: the next one is there before the last one goes.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": _selector(target, environment)},
            "template": stored(
                {"metadata": {"labels": _labels(target, environment)}, "spec": _pod(target, environment)}
            ),
        },
    }


def _pod(target: Target, environment: Environment) -> Object:
    server = environment.server or Server()
    container: Object = {
        "name": ROLE.value,
        "image": environment.image,
        "imagePullPolicy": target.settings.image_pull_policy,
        "env": [
            variables.variable("HOME", variables.TEMPORARY),
            variables.variable("TMPDIR", variables.TEMPORARY),
            # OpenEnv's servers take one session unless they are told otherwise, and their images by this name.
            variables.variable("MAX_CONCURRENT_ENVS", str(environment.max_concurrent)),
            *variables.no_gpu(target, ROLE),
        ],
        "ports": [{"name": "http", "containerPort": ENVIRONMENT_PORT, "protocol": "TCP"}],
        "resources": {
            "requests": {"cpu": f"{math.ceil(server.cpu * 1000)}m", "memory": server.memory},
            "limits": {"memory": server.memory},
        },
        "readinessProbe": pods.http_probe("/health", "http", failures=2),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": pods.SCRATCH, "mountPath": variables.TEMPORARY}],
    }
    pods.secure(container)
    scratch = {"name": pods.SCRATCH, "emptyDir": {"sizeLimit": _SCRATCH}}
    return {"containers": [container], "volumes": [scratch], **pods.confined(target, ROLE)}


def _service(target: Target, environment: Environment) -> Object:
    """One address for all replicas: each connection, and so each episode, goes to one that is ready."""
    port = {"name": "http", "port": ENVIRONMENT_PORT, "protocol": "TCP", "targetPort": ENVIRONMENT_PORT}
    spec = {"selector": _selector(target, environment), "ports": [port]}
    return {**_head(target, environment, "v1", "Service"), "spec": spec}
