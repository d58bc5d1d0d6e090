"""What every builder starts from: one run, where it lives, and the operator's settings."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from echorl_manifest.models.base import PodTemplate as PodFields
from echorl_manifest.models.network import Network
from echorl_manifest.models.run import EchoRLRun, EchoRLRunSpec
from echorl_operator import names
from echorl_operator.children.node_network import network_of
from echorl_operator.names import PodRole
from echorl_operator.settings import RoleDefaults, Settings

Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as plain JSON."""
_HASH_CHARACTERS = 10


@dataclass(frozen=True)
class Target:
    """One run in one namespace."""

    run: EchoRLRun
    uid: str
    namespace: str
    settings: Settings

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.metadata.name

    @property
    def spec(self) -> EchoRLRunSpec:
        """The run's spec."""
        return self.run.spec

    def fields(self, role: PodRole) -> PodFields:
        """Image and template of a role. Prepare has the orchestrator's: it imports what that one will import."""
        if role is PodRole.TRAINER:
            return self.spec.trainer
        return self.spec.inference if role is PodRole.INFERENCE else self.spec.orchestrator

    def defaults(self, role: PodRole) -> RoleDefaults:
        """The installation's defaults for a role."""
        defaults: RoleDefaults = getattr(self.settings, role.value)
        return defaults

    def image(self, name: str) -> str:
        """The installation's image; ``name`` is a field of ``Images``."""
        configured: str | None = getattr(self.settings.images, name)
        return configured or f"echorl/{name.replace('_', '-')}:{self.settings.operator_version}"

    def gpus(self, role: PodRole) -> int:
        """GPUs of each pod of a role."""
        by_role = {
            PodRole.TRAINER: self.spec.trainer.gpus_per_replica,
            PodRole.INFERENCE: self.spec.inference.gpus_per_replica,
        }
        return by_role.get(role, 0)

    def network(self, role: PodRole) -> Network:
        """Whose network pods of a role are on."""
        return network_of(self.spec, role)

    def selector(self, role: PodRole) -> dict[str, str]:
        """Labels that select the pods of a role, of this run alone."""
        return {names.LABEL_RUN_UID: self.uid, names.LABEL_ROLE: role.value}

    def labels(self, role: PodRole | None = None) -> dict[str, str]:
        """Labels of a child; with a role, of one that is this role's."""
        own = {
            names.LABEL_NAME: names.APP_NAME,
            names.LABEL_MANAGED_BY: names.MANAGED_BY,
            names.LABEL_RUN: self.name,
            names.LABEL_RUN_UID: self.uid,
        }
        if role is None:
            return own
        return {**own, names.LABEL_COMPONENT: role.value, names.LABEL_ROLE: role.value}

    def child(self, api_version: str, kind: str, name: str, role: PodRole | None = None) -> Object:
        """The head of a child: kind, name, labels, owner."""
        return {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": self.labels(role),
                "ownerReferences": [owner_reference(self.name, self.uid)],
            },
        }


def owner_reference(name: str, uid: str) -> Object:
    """The reference of a child to its run.

    It does not block the run's deletion in the foreground, so it needs no right on the run's finalizers.
    """
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def canonical_json(value: object) -> str:
    """Write JSON with sorted keys and no spaces, so that equal values have equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: object) -> str:
    """SHA-256 of a value's canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def config_map_name(run: str, file: str, content: object) -> str:
    """Name of the ConfigMap with one role's config (``trainer.json``): by its content, as it is never changed."""
    return f"{run}-{file.removesuffix('.json')}-{digest(content)[:_HASH_CHARACTERS]}"


def config_file(content: object) -> str:
    """Text of a role's config as its pods read it."""
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def hashed(body: Object) -> Object:
    """A copy with the hash annotation: of the object without it, and of a Secret without its data."""
    metadata = dict(body["metadata"])
    annotations = {key: text for key, text in metadata.pop("annotations", {}).items() if key != names.ANNOTATION_HASH}
    content = {key: part for key, part in body.items() if not (body["kind"] == "Secret" and key == "data")}
    content["metadata"] = {**metadata, "annotations": annotations} if annotations else metadata
    annotations[names.ANNOTATION_HASH] = digest(content)
    return {**body, "metadata": {**metadata, "annotations": annotations}}
