"""Environment variables of the run's containers: who a role is, where it keeps files, what it must not use."""

from echorl_core import names as core_names
from echorl_operator import names
from echorl_operator.children import storage
from echorl_operator.children.target import Object, Target
from echorl_operator.names import PodRole

HOME = "/home/echorl"
TEMPORARY = "/tmp"  # noqa: S108 - a volume of the pod's own
TERMINATION_LOG = "/dev/termination-log"


def variable(name: str, value: str) -> Object:
    """An environment variable."""
    return {"name": name, "value": value}


def label_variable(name: str, label: str) -> Object:
    """An environment variable with the value of one of the pod's labels."""
    return field_variable(name, f"metadata.labels['{label}']")


def field_variable(name: str, path: str) -> Object:
    """An environment variable with the value of one of the pod's fields."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def secret_variable(name: str, secret: str, key: str, *, optional: bool = False) -> Object:
    """An environment variable with the value of a Secret's key; ``optional``: the pod starts without it too."""
    reference: Object = {"name": secret, "key": key} | ({"optional": True} if optional else {})
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}


def identity(target: Target, *, attempt: bool, token: bool) -> list[Object]:
    """Who a role is: the run, and where it is bound to one, the attempt."""
    variables = [
        variable(core_names.ENV_RUN_NAME, target.name),
        variable(core_names.ENV_RUN_UID, target.uid),
        variable(core_names.ENV_TERMINATION_LOG, TERMINATION_LOG),
    ]
    if attempt:
        variables.append(label_variable(core_names.ENV_ATTEMPT, names.LABEL_ATTEMPT))
    if token:
        variables.append(secret_variable(core_names.ENV_ADMIN_TOKEN, names.token(target.name), storage.TOKEN_KEY))
    return variables


def folders() -> list[Object]:
    """Where a role keeps its files: on volumes of its pod, as images cannot be written to."""
    cache = f"{HOME}/.cache"
    folders = {
        "HOME": HOME,
        "TMPDIR": TEMPORARY,
        "XDG_CACHE_HOME": cache,
        "HF_HOME": f"{cache}/huggingface",
        "VLLM_CACHE_ROOT": f"{cache}/vllm",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/torchinductor",
    }
    own = [variable(name, folder) for name, folder in folders.items()]
    return [*own, variable("PYTHONUNBUFFERED", "1"), variable("PYTHONDONTWRITEBYTECODE", "1")]


def offline(role: PodRole) -> list[Object]:
    """That nothing is fetched from a hub, but by prepare."""
    return [] if role is PodRole.PREPARE else [variable("HF_HUB_OFFLINE", "1")]


def no_gpu(target: Target, role: PodRole) -> list[Object]:
    """Variables for a role without GPUs."""
    if target.gpus(role):
        return []
    # A container that asks for no GPU may still see all of its node's. -1, since an empty value is not kept.
    return [variable("NVIDIA_VISIBLE_DEVICES", "void"), variable("CUDA_VISIBLE_DEVICES", "-1")]
