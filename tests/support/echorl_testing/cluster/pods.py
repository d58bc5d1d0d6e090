"""Pods for tests, and what becomes of them."""

import json
from collections.abc import Callable
from typing import Any

from echorl_testing.cluster.api import Api
from echorl_testing.cluster.errors import ClusterError
from echorl_testing.cluster.images import BUSYBOX
from echorl_testing.cluster.processes import wait_for

GPU = "nvidia.com/gpu"


def pod(name: str, *, gpus: int = 0, command: str = "sleep 3600") -> dict[str, Any]:
    """A pod with one container that runs a shell command and is not started again; its label ``app`` is its name."""
    container: dict[str, Any] = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", command],
    }
    if gpus:
        container["resources"] = {"limits": {GPU: str(gpus)}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0, "restartPolicy": "Never"}
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def pod_when(
    api: Api, path: str, condition: Callable[[dict[str, Any]], bool], seconds: float = 120.0
) -> dict[str, Any]:
    """The pod at ``path``, as soon as the condition holds.

    Raises:
        AssertionError: it does not within ``seconds``; with the pod's last status.
    """
    seen: dict[str, Any] = {}

    def holds() -> bool:
        seen.update(api.get(path))
        return condition(seen)

    try:
        wait_for(path, holds, seconds=seconds)
    except ClusterError as error:
        raise AssertionError(f"{error} Last status: {json.dumps(seen['status'], indent=1)}") from error
    return seen


def succeeded(found: dict[str, Any]) -> bool:
    """Whether all its containers ended well."""
    return bool(found["status"].get("phase") == "Succeeded")
