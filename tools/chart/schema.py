"""charts/echorl/values.schema.json, from the models of the values."""

import json
from collections.abc import Mapping
from typing import Any

from tools.chart.values import SETTINGS_OF_THE_CHART, InstallationSettings, Values

_DROPPED = frozenset({"title", "default"})
"""What is dropped of every node: defaults stand in values.yaml, or are the operator's."""
_NULL = {"type": "null"}


def values_schema() -> dict[str, Any]:
    """The JSON schema that Helm holds values against; it knows every key and refuses all others."""
    written = Values.model_json_schema(by_alias=True)
    definitions = {name: _plain(definition) for name, definition in written.pop("$defs").items()}
    for key in SETTINGS_OF_THE_CHART:
        del definitions[InstallationSettings.__name__]["properties"][key]
    schema = _plain(written)
    # Helm puts it there itself when the chart is a part of another.
    schema["properties"]["global"] = {"type": "object", "description": "Not looked at."}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": definitions}


def schema_text() -> str:
    """The schema as the chart holds it."""
    return json.dumps(values_schema(), indent=2, ensure_ascii=False) + "\n"


def _plain(node: Any) -> Any:
    """A node as people want to read it in a message: no titles, no union for what may be null."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    kept = {
        # Names of values may be those of keywords.
        key: {name: _plain(inner) for name, inner in value.items()} if key == "properties" else _plain(value)
        for key, value in node.items()
        if key not in _DROPPED
    }
    described = " ".join(str(kept.get("description", "")).replace("``", "").split())
    if accepts := kept.pop("x-accepts", None):
        described = f"{described} Accepted: {accepts['text']}.".strip()
    if described:
        kept["description"] = described
    return _nullable(kept)


def _nullable(node: dict[str, Any]) -> dict[str, Any]:
    options = [option for option in node.get("anyOf", ()) if option != _NULL]
    if len(options) != 1 or "type" not in options[0] or len(node["anyOf"]) != 2:
        return node
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    return {**options[0], **rest, "type": [options[0]["type"], "null"]}
