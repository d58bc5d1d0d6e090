"""Strict JSON schemas of Kubernetes objects, for kubeconform: from an API server's OpenAPI document and from CRDs.

Strict: a field that the schema does not name is an error, which an API server would drop or only warn of.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

LOCATION = "{{.Group}}/{{.ResourceAPIVersion}}/{{.ResourceKind}}.json"
"""Where kubeconform finds an object's schema below the folder."""
_KEPT = ["type", "format", "enum", "required", "pattern", "minimum", "maximum", "minLength", "maxLength"]
_KEPT += ["minItems", "maxItems", "uniqueItems", "nullable"]
_NESTED = ("items", "not")
_LISTS = ("allOf", "anyOf", "oneOf")
_PREFIX = "#/definitions/"
_OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_ANY_NOTATION: Mapping[str, Schema] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
}
"""What the document calls texts, and the API server takes as numbers too."""


def write_schemas(folder: Path, openapi: Path, crds: Iterable[Schema]) -> None:
    """Write a schema for every kind.

    Args:
        folder: gets a file a kind, at ``LOCATION``.
        openapi: the API server's OpenAPI 2 document (``swagger.json``).
        crds: CustomResourceDefinitions of more kinds.
    """
    document = json.loads(openapi.read_bytes())["definitions"]
    definitions = {name: _ANY_NOTATION.get(name) or _strict(body) for name, body in document.items()}
    for name, body in document.items():
        for kind in body.get("x-kubernetes-group-version-kind", ()):
            version = "/".join(part for part in (kind["group"], kind["version"]) if part)
            _write(folder, version, kind["kind"], {"$ref": _PREFIX + name}, definitions)
    for crd in crds:
        for served in crd["spec"]["versions"]:
            schema = _strict(served["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"$ref": _PREFIX + _OBJECT_META}
            version = f"{crd['spec']['group']}/{served['name']}"
            _write(folder, version, crd["spec"]["names"]["kind"], schema, definitions)


def _write(folder: Path, version: str, kind: str, schema: Schema, definitions: Mapping[str, Schema]) -> None:
    parts = version.split("/")
    file = folder / parts[0] / parts[-1] / f"{kind.lower()}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    needed: dict[str, Schema] = {}
    open_names = set(_references(schema))
    while open_names:
        name = open_names.pop()
        needed[name] = definitions[name]
        open_names |= set(_references(needed[name])) - needed.keys()
    # draft 4 heeds nothing beside a $ref
    file.write_text(json.dumps({"allOf": [schema], "definitions": needed}))


def _strict(schema: Schema) -> Schema:
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["string", "integer"]}
    made = {key: schema[key] for key in _KEPT if key in schema}
    made |= {key: _strict(schema[key]) for key in _NESTED if key in schema}
    made |= {key: [_strict(one) for one in schema[key]] for key in _LISTS if key in schema}
    if "properties" in schema:
        made["properties"] = {name: _strict(one) for name, one in schema["properties"].items()}
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        made["additionalProperties"] = _strict(more)
    elif "properties" in schema and more is None and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    return made


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        target = schema.get("$ref")
        if isinstance(target, str):
            yield target.removeprefix(_PREFIX)
        for inner in schema.values():
            yield from _references(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _references(inner)
