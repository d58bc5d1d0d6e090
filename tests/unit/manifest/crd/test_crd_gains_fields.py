"""The CRD accepts what the earlier version's accepted: fields are added, none goes, none takes less than it took."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from echorl_testing.earlier import NoHistory, earlier
from echorl_testing.kube.run_objects import CRD_FILE

LEAST = ("minimum", "minItems", "minLength", "minProperties")
MOST = ("maximum", "maxItems", "maxLength", "maxProperties")


def schema_of(crd: dict[str, Any]) -> dict[str, Any]:
    (version,) = crd["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def narrowed(old: dict[str, Any], new: dict[str, Any], path: str = "") -> Iterator[str]:
    """Where ``new`` may refuse what ``old`` accepted, or drop it. Rules in CEL are left out: an object that breaks one
    as it broke it before is accepted by the API server."""
    for key in ("type", "pattern", "format", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"):
        if new.get(key) != old.get(key):
            yield f"{path}: {key} was {old.get(key)}, is {new.get(key)}"
    if "enum" in new and not set(old.get("enum", ["any"])) <= set(new["enum"]):
        yield f"{path}: enum was {old.get('enum')}, is {new['enum']}"
    yield from (f"{path}: {key} is {new[key]}" for key in LEAST if key in new and new[key] > old.get(key, -math.inf))
    yield from (f"{path}: {key} is {new[key]}" for key in MOST if key in new and new[key] < old.get(key, math.inf))
    if more := set(new.get("required", ())) - set(old.get("required", ())):
        yield f"{path}: required besides: {sorted(more)}"
    for key, inner in old.get("properties", {}).items():
        if key not in new.get("properties", {}):
            yield f"{path}.{key}: gone"
        else:
            yield from narrowed(inner, new["properties"][key], f"{path}.{key}")
    for key in ("items", "additionalProperties"):
        if isinstance(old.get(key), dict):
            yield from narrowed(old[key], new.get(key, {}), f"{path}.{key}")


def test_every_field_of_the_earlier_version_is_there_and_takes_what_it_took(tmp_path: Path) -> None:
    try:
        before = earlier(tmp_path / "earlier", "crds") / "crds" / CRD_FILE.name
    except NoHistory as error:
        pytest.skip(str(error))
    old, new = (schema_of(yaml.safe_load(file.read_text())) for file in (before, CRD_FILE))
    assert list(narrowed(old, new)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"type": "integer"}, {"type": "string"}),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}),
        ({"type": "string"}, {"type": "string", "maxLength": 9}),
        ({"maxItems": 9}, {"maxItems": 8}),
        ({"minimum": 1}, {"minimum": 2}),
        ({"properties": {"a": {}}}, {"properties": {"b": {}}}),
        ({"properties": {"a": {}}}, {"properties": {"a": {}}, "required": ["a"]}),
        ({"items": {"properties": {"a": {"type": "integer"}}}}, {"items": {"properties": {"a": {"type": "string"}}}}),
    ],
)
def test_what_it_would_refuse(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert len(list(narrowed(old, new))) == 1
    assert not list(narrowed(old, old))
