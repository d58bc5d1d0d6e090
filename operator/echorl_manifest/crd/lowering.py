"""From the JSON schema that pydantic writes to a structural OpenAPI v3 schema, the kind that a CRD may hold.

Pydantic's ``$ref``, ``const``, ``prefixItems``, ``anyOf``, numeric ``exclusiveMinimum`` and ``additionalProperties:
false`` are each refused by the API server. A keyword that is not known here is an error, so that none slips through.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from echorl_manifest.crd.validations import literal, validation

Schema = dict[str, Any]

_KEPT = frozenset(
    {
        "enum",
        "format",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "pattern",
        "required",
        "type",
    }
)
_DROPPED = frozenset({"title", "default", "description", "$defs"})
_LONGEST_DEFAULT = 60
_LONGEST_WORD = 63
"""Of a word that may stand for a number; only a bound, so that rules have a known cost."""


class NotStructural(ValueError):
    """A schema that has no structural form."""


def structural(schema: Mapping[str, Any]) -> Schema:
    """The structural form of a model's JSON schema, with everything that it refers to put in place.

    Descriptions end with the default, which is none of the API server's: the operator and the command line fill it in.

    Raises:
        NotStructural: a keyword or a union that has no such form.
    """
    return _Lowering(schema.get("$defs", {})).lower(schema)


def plain(text: str) -> str:
    """A docstring as text for people who read no markup."""
    return " ".join(text.replace("``", "").split())


class _Lowering:
    """One pass over a schema and its definitions."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._keywords: dict[str, Callable[[Schema, Any], None]] = {
            "const": self._const,
            "exclusiveMaximum": self._exclusive_maximum,
            "exclusiveMinimum": self._exclusive_minimum,
            "items": self._items,
            "prefixItems": self._prefix_items,
            "properties": self._properties,
            "additionalProperties": self._additional_properties,
            "x-list-map-key": self._list_map_key,
        }

    def lower(self, schema: Mapping[str, Any]) -> Schema:
        """One node, and all below it."""
        node = self._whole(schema)
        lowered: Schema = {}
        if text := _description(node):
            lowered["description"] = text
        if "anyOf" in node:
            self._scalar_union(lowered, node.pop("anyOf"))
        for keyword, value in node.items():
            if keyword in _KEPT:
                lowered[keyword] = value
            elif keyword in self._keywords:
                self._keywords[keyword](lowered, value)
            elif keyword not in _DROPPED and keyword != "x-accepts":
                raise NotStructural(f"{keyword}: {json.dumps(value)[:80]}")
        _spell_out(lowered, node.get("x-accepts"))
        return lowered

    def _whole(self, schema: Mapping[str, Any]) -> Schema:
        """A node with its reference put in place and its None taken out: ``nullable`` instead."""
        node = dict(schema)
        options = [option for option in node.get("anyOf", ()) if option != {"type": "null"}]
        if "anyOf" in node and len(options) == 1:
            del node["anyOf"]
            node = {**options[0], **node, "description": _both(node, options[0])}
        if "$ref" in node:
            target = self._whole(self._definitions[node.pop("$ref").removeprefix("#/$defs/")])
            node = {**target, **node, "description": _both(node, target)}
        return node

    def _const(self, lowered: Schema, value: Any) -> None:
        lowered["enum"] = [value]

    def _exclusive_minimum(self, lowered: Schema, bound: float) -> None:
        lowered["minimum"] = bound
        lowered["exclusiveMinimum"] = True

    def _exclusive_maximum(self, lowered: Schema, bound: float) -> None:
        lowered["maximum"] = bound
        lowered["exclusiveMaximum"] = True

    def _items(self, lowered: Schema, item: Schema) -> None:
        lowered["items"] = self.lower(item)

    def _prefix_items(self, lowered: Schema, items: list[Schema]) -> None:
        first = self.lower(items[0])
        if any(self.lower(item) != first for item in items):
            raise NotStructural("prefixItems: items of several kinds")
        lowered["items"] = first

    def _properties(self, lowered: Schema, properties: Mapping[str, Schema]) -> None:
        lowered["properties"] = {key: self.lower(inner) for key, inner in properties.items()}

    def _additional_properties(self, lowered: Schema, value: Any) -> None:
        if value is True:
            lowered["x-kubernetes-preserve-unknown-fields"] = True
        elif value is not False:
            lowered["additionalProperties"] = self.lower(value)

    def _list_map_key(self, lowered: Schema, key: str) -> None:
        lowered["x-kubernetes-list-type"] = "map"
        lowered["x-kubernetes-list-map-keys"] = [key]

    def _scalar_union(self, lowered: Schema, options: list[Schema]) -> None:
        """One word or a whole number."""
        words = [option["const"] for option in options if option.get("type") == "string" and "const" in option]
        numbers = [option for option in options if option.get("type") == "integer"]
        if (len(words), len(numbers), len(options)) != (1, 1, 2):
            raise NotStructural(f"anyOf: {json.dumps(options)[:80]}")
        number = self.lower(numbers[0])
        signs = {"minimum": ">=", "maximum": "<="}
        bounds = [f"self {sign} {number[keyword]}" for keyword, sign in signs.items() if keyword in number]
        lowered["x-kubernetes-int-or-string"] = True
        lowered["maxLength"] = _LONGEST_WORD
        rule = f"type(self) == string ? self == {literal(words[0])} : {' && '.join(bounds) or 'true'}"
        lowered["x-kubernetes-validations"] = [{"rule": rule}]


def nullable(schema: Schema) -> None:
    """Let null stand for "not set" wherever a key may be left out. Free-form values hold null anyway.

    A nullable enumeration refuses null, even one that lists it. One that is not nullable takes it: the API server drops
    a null that the schema does not allow.
    """
    required = set(schema.get("required", ()))
    for key, inner in schema.get("properties", {}).items():
        if key not in required and "enum" not in inner:
            inner["nullable"] = True
        nullable(inner)
    for below in ("items", "additionalProperties"):
        if below in schema:
            nullable(schema[below])


def _both(node: Mapping[str, Any], target: Mapping[str, Any]) -> str:
    """What a field says, then what its type says."""
    own, of_type = (str(one.get("description") or "") for one in (node, target))
    return of_type if of_type.startswith(own.rstrip(".")) else f"{own}\n\n{of_type}".strip()


def _description(node: Mapping[str, Any]) -> str:
    text = plain(str(node.get("description", "")))
    default = node.get("default")
    if default in (None, [], {}, ""):
        return text
    words = default if isinstance(default, str) else json.dumps(default)
    if isinstance(default, dict) or len(words) > _LONGEST_DEFAULT:
        return text
    return f"{text} Default: {words}." if text else f"Default: {words}."


def _spell_out(lowered: Schema, accepts: Mapping[str, str] | None) -> None:
    """Say in words what a pattern, a union or a check accepts."""
    if accepts is None:
        return
    union = lowered.pop("x-kubernetes-validations", [])
    rules = [rule["rule"] for rule in union]
    if "pattern" in lowered:
        rules.append(f"self.matches({literal(lowered.pop('pattern'))})")
    if accepts["check"]:
        rules.append(accepts["check"])
    if rules:
        found = "{self}" if union else '"{self}"'
        lowered["x-kubernetes-validations"] = [
            validation(" && ".join(rules), f"found {found}; accepted: {accepts['text']}")
        ]
