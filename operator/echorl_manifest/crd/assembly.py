"""The CustomResourceDefinition as a whole, and as text."""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from echorl_manifest.crd.immutability import immutability
from echorl_manifest.crd.lowering import Schema, nullable, plain, structural
from echorl_manifest.crd.refusals import REFUSALS
from echorl_manifest.crd.rules import RULES
from echorl_manifest.crd.validations import Validation
from echorl_manifest.models.base import API_GROUP, KIND, PLURAL, VERSION, ApiModel
from echorl_manifest.models.run import EchoRLRun, EchoRLRunSpec
from echorl_manifest.models.status import RunStatus
from echorl_manifest.mutability import effect_of

MAX_BYTES = 256 * 1024
"""Of all annotations of an object, as the API server has it."""
_HEAD = "# Generated from operator/echorl_manifest by `make generate`; a check fails when it is stale.\n"

COLUMNS = (
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Reason", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].reason'},
    {"name": "Step", "type": "integer", "jsonPath": ".status.step"},
    {"name": "Reward", "type": "string", "jsonPath": ".status.reward"},
    {"name": "Policy", "type": "integer", "jsonPath": ".status.policy.trained"},
    {"name": "Checkpoint", "type": "integer", "jsonPath": ".status.checkpoint.step"},
    {"name": "Restarts", "type": "integer", "jsonPath": ".status.restarts"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1},
)
SCALE = {
    "specReplicasPath": ".spec.inference.replicas",
    "statusReplicasPath": ".status.inference.replicas",
    "labelSelectorPath": ".status.inference.selector",
}


def node_at(schema: Schema, path: str) -> Schema:
    """The part of a schema at a path such as ``spec.environments.train[].members{}.url``; the whole at the empty path.

    Raises:
        KeyError: there is none.
    """
    for segment in path.split(".") if path else ():
        schema = schema["properties"][segment.removesuffix("[]").removesuffix("{}")]
        if segment.endswith("[]"):
            schema = schema["items"]
        elif segment.endswith("{}"):
            schema = schema["additionalProperties"]
    return schema


def open_api_schema() -> Schema:
    """The schema of a whole object, with every rule."""
    schema: Schema = {
        "type": "object",
        "description": plain(EchoRLRun.__doc__ or ""),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # A rule can name only what the schema
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": _spec(),
            "status": _part(RunStatus),
        },
    }
    for rules in (RULES, REFUSALS, immutability()):
        _attach(schema, rules)
    return schema


def _part(model: type[ApiModel]) -> Schema:
    part = structural(model.model_json_schema(by_alias=True))
    nullable(part)
    return part


def _spec() -> Schema:
    spec = _part(EchoRLRunSpec)
    for kind in ("train", "eval"):
        environments = node_at({"properties": {"spec": spec}}, f"spec.environments.{kind}")
        environments["x-kubernetes-list-type"] = "map"
        environments["x-kubernetes-list-map-keys"] = ["name"]
    _tell_effects(spec, "spec")
    _make_scalable(spec)
    return spec


def _tell_effects(node: Schema, path: str) -> None:
    """Say at every field what its change does to a run that exists."""
    for key, inner in node.get("properties", {}).items():
        place = f"{path}.{key}"
        if "properties" in inner:
            _tell_effects(inner, place)
        elif "properties" in inner.get("items", {}):
            _tell_effects(inner["items"], f"{place}[]")
        else:
            inner["description"] = f"{inner.get('description', '')} A change {effect_of(place).words}.".strip()


def _make_scalable(spec: Schema) -> None:
    """The one default that the API server sets: without a value the scale subresource cannot be read."""
    inference = spec["properties"]["inference"]
    replicas = inference["properties"]["replicas"]
    for part, default in ((inference, {}), (replicas, 1)):
        del part["nullable"]
        part["default"] = default


def _attach(schema: Schema, rules: Mapping[str, Iterable[Validation]]) -> None:
    for path, entries in rules.items():
        node = node_at(schema, path)
        node.setdefault("x-kubernetes-validations", []).extend(entries)


def custom_resource_definition(*, keep: bool = False) -> dict[str, Any]:
    """The CRD.

    Args:
        keep: with the annotation that makes Helm leave it when the release is uninstalled.
    """
    metadata: dict[str, Any] = {"name": f"{PLURAL}.{API_GROUP}"}
    if keep:
        metadata["annotations"] = {"helm.sh/resource-policy": "keep"}
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": list(COLUMNS),
        "subresources": {"status": {}, "scale": SCALE},
        "schema": {"openAPIV3Schema": open_api_schema()},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": API_GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["erl"],
                "categories": ["all"],
            },
            "versions": [version],
        },
    }


class _WithoutAliases(yaml.SafeDumper):
    """Writes every value out, however often it is used."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def crd_text(*, keep: bool = False) -> str:
    """The CRD as YAML.

    Args:
        keep: as for ``custom_resource_definition``.
    """
    crd = custom_resource_definition(keep=keep)
    return _HEAD + yaml.dump(crd, Dumper=_WithoutAliases, sort_keys=False, allow_unicode=True, width=160)
