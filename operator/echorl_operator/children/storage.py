"""The run's volume: its claim, and who mounts what of it. docs/operator/children.md has the table."""

from echorl_manifest.models.model import is_path
from echorl_operator import names
from echorl_operator.children import cluster_placement as places
from echorl_operator.children.target import Object, Target
from echorl_operator.names import PodRole
from echorl_operator.quantities import canonical

VOLUME = "volume"
CODE = "code"
TOKEN_KEY = "token"  # noqa: S105 - the key's name
"""The key of the run's token in its Secret, and of a hub token in the user's."""


def claim_name(target: Target) -> str:
    """The claim that the run's pods mount."""
    return target.spec.storage.claim_name or names.claim(target.name)


def claims(target: Target) -> list[Object]:
    """The claim to make; none if the run names one.

    With ``retain`` it has no owner, so it outlives the run; ``plan.retention`` sees to that later on. It is to be
    created, not applied: one that a former run of the same name left is taken as it is, and a size that was raised by
    hand stays.
    """
    storage = target.spec.storage
    if storage.claim_name is not None:
        return []
    claim = target.child("v1", "PersistentVolumeClaim", names.claim(target.name))
    if storage.retain:
        del claim["metadata"]["ownerReferences"]
    size = canonical(storage.size or target.settings.storage_size)
    spec: Object = {"accessModes": [storage.access_mode], "resources": {"requests": {"storage": size}}}
    if storage.storage_class_name is not None:
        spec["storageClassName"] = storage.storage_class_name
    return [{**claim, "spec": spec}]


def volumes(target: Target, role: PodRole) -> list[Object]:
    """Volumes of a role that are not its own: the run's, and the user's code where it is a ConfigMap."""
    volumes: list[Object] = [{"name": VOLUME, "persistentVolumeClaim": {"claimName": claim_name(target)}}]
    config_map = target.spec.code.config_map
    if config_map is not None and _has_code(role):
        volumes.append({"name": CODE, "configMap": {"name": config_map}})
    return volumes


def mounts(target: Target, role: PodRole) -> list[Object]:
    """What a role sees of the run's volume.

    Prepare sees all of it: it makes the folders that the others mount. A folder that is missing would be made by the
    kubelet, as root's.
    """
    if role is PodRole.PREPARE:
        return [{"name": VOLUME, "mountPath": places.VOLUME}, *_code(target, from_volume=False)]
    mounts = [{**_part(places.model_path(target.run), places.model_folder(target.run)), "readOnly": True}]
    run = _part(places.run_directory(target.name), places.run_folder(target.name))
    if role is not PodRole.INFERENCE:
        return [*mounts, run, *_code(target, from_volume=True)]
    if target.spec.weight_transfer.mode == "disk":
        mounts.append({**run, "readOnly": True})
    return mounts


def code_path(target: Target, role: PodRole) -> str | None:
    """Where a role finds the user's code; None if there is none, or the role runs none."""
    code = target.spec.code
    if not _has_code(role) or (code.path is None and code.config_map is None):
        return None
    if role is PodRole.PREPARE and code.path is not None:
        # Inside the whole volume, so that it can say that there is no such folder.
        return f"{places.VOLUME}/{places.on_volume(code.path)}"
    return places.CODE


def affinity(target: Target, role: PodRole) -> Object | None:
    """Where pods must go to reach a volume that one node alone can mount: to that node, all of them.

    Trainer, engines and prepare may be the first one there; the orchestrator follows, so that it never takes a node
    that the gang does not fit on.
    """
    if target.spec.storage.access_mode != "ReadWriteOnce":
        return None
    first = [PodRole.TRAINER, PodRole.INFERENCE]
    roles = sorted({role, *first} if role is PodRole.PREPARE else first)
    selector: Object = {
        "matchLabels": {names.LABEL_RUN_UID: target.uid},
        "matchExpressions": [{"key": names.LABEL_ROLE, "operator": "In", "values": [role.value for role in roles]}],
    }
    term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def hub_token(target: Target) -> Object | None:
    """The hub token's place in the user's Secret; None if the model needs none."""
    secret = target.spec.model.token_secret_name
    if secret is None or is_path(target.spec.model.name):
        return None
    return {"name": secret, "key": TOKEN_KEY}


def _part(mount_path: str, sub_path: str) -> Object:
    return {"name": VOLUME, "mountPath": mount_path, "subPath": sub_path}


def _has_code(role: PodRole) -> bool:
    return role is not PodRole.INFERENCE


def _code(target: Target, *, from_volume: bool) -> list[Object]:
    code = target.spec.code
    if code.config_map is not None:
        return [{"name": CODE, "mountPath": places.CODE, "readOnly": True}]
    if code.path is not None and from_volume:
        return [{**_part(places.CODE, places.on_volume(code.path)), "readOnly": True}]
    return []
