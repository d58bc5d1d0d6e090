"""What an edit that applies live makes of an attempt's rendering: what the edit changes, and nothing else.

The pods of an attempt are of one version of images, configs and settings, which need not be this operator's: a
rendering by another one, beside pods that stay, would mix two. So the manifest before and after the edit are rendered
alike, and only where these two differ is the frozen rendering changed.

    frozen ------ what differs between base and edited -----> amended
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from echorl_operator import names
from echorl_operator.children.rendering import Rendering
from echorl_operator.children.target import Object, config_file, config_map_name, digest, hashed

_ABSENT: Any = object()
_PODS = ("trainer", "inference", "orchestrator", "prepare")


def amended(frozen: Rendering, base: Rendering, edited: Rendering) -> Rendering:
    """The rendering of an attempt that goes on after an edit.

    Args:
        frozen: that the attempt goes on from.
        base: of the same spec, by this operator.
        edited: of the spec as it stands now, by this operator. Where ``frozen`` equals ``base``, it is the result.
    """
    before, plain, after = (_by_key(rendering.common) for rendering in (frozen, base, edited))
    merged = _merged(*({key: _opened(body) for key, body in part.items()} for part in (before, plain, after)))
    common = {key: _closed(body, frozen.run, before.get(key)) for key, body in merged.items()}
    # Pods name their configs, whose names follow from their content: one that stays has another name in ``base``.
    kept = {_name(plain[key]): _name(before[key]) for key in plain if key in before}
    made = {_name(after[key]): _name(common[key]) for key in after if key in common}
    pods = {
        field: _merged(
            getattr(frozen, field), _renamed(getattr(base, field), kept), _renamed(getattr(edited, field), made)
        )
        for field in _PODS
    }
    return replace(
        edited,
        operator_version=frozen.operator_version,
        config_hash=digest({file: content for body in merged.values() for file, content in _files(body).items()}),
        common=list(common.values()),
        token=frozen.token,
        arrows=_merged(frozen.arrows, base.arrows, edited.arrows),
        **pods,
    )


def _merged(frozen: Any, base: Any, edited: Any) -> Any:
    """``frozen`` with what differs between ``base`` and ``edited``: mappings by key, lists of named things by name."""
    if base == edited:
        return frozen
    sides = (frozen, base, edited)
    if all(isinstance(side, Mapping) for side in sides):
        return _merged_keys(*sides)
    if all(isinstance(side, list) and all(isinstance(item, Mapping) for item in side) for side in sides):
        named = [{item.get("name", _ABSENT): item for item in side} for side in sides]
        if all(
            _ABSENT not in by_name and len(by_name) == len(side) for by_name, side in zip(named, sides, strict=True)
        ):
            return list(_merged_keys(*named).values())
        if len(frozen) == len(base) == len(edited):
            return [_merged(*items) for items in zip(*sides, strict=True)]
    return edited


def _merged_keys(frozen: Mapping[Any, Any], base: Mapping[Any, Any], edited: Mapping[Any, Any]) -> dict[Any, Any]:
    found = {key: _merged(*(side.get(key, _ABSENT) for side in (frozen, base, edited))) for key in {**edited, **frozen}}
    return {key: value for key, value in found.items() if value is not _ABSENT}


def _by_key(common: list[Object]) -> dict[tuple[str, str], Object]:
    """Children by kind and name; configs by their files, since their names say what is in them."""
    return {(body["kind"], next(iter(_files(body)), _name(body))): body for body in common}


def _files(body: Object) -> Mapping[str, Any]:
    return body["data"] if body["kind"] == "ConfigMap" else {}


def _opened(body: Object) -> Object:
    """A child without its hash; of a config its content, and no name."""
    metadata = dict(body["metadata"])
    annotations = {key: text for key, text in metadata.pop("annotations").items() if key != names.ANNOTATION_HASH}
    opened = {**body, "metadata": {**metadata, **({"annotations": annotations} if annotations else {})}}
    if body["kind"] == "ConfigMap":
        del opened["metadata"]["name"]
        opened["data"] = {file: json.loads(text) for file, text in body["data"].items()}
    return opened


def _closed(opened: Object, run: str, frozen: Object | None) -> Object:
    """The child again; the frozen one itself if nothing of it has changed."""
    if frozen is not None and _opened(frozen) == opened:
        return frozen
    if opened["kind"] != "ConfigMap":
        return hashed(opened)
    ((file, content),) = opened["data"].items()
    metadata = {"name": config_map_name(run, file, content), **opened["metadata"]}
    return hashed({**opened, "metadata": metadata, "data": {file: config_file(content)}})


def _name(body: Object) -> str:
    name: str = body["metadata"]["name"]
    return name


def _renamed(part: Any, new_names: Mapping[str, str]) -> Any:
    """A copy in which names of configs are others."""
    if isinstance(part, Mapping):
        return {key: _renamed(item, new_names) for key, item in part.items()}
    if isinstance(part, list):
        return [_renamed(item, new_names) for item in part]
    return new_names.get(part, part) if isinstance(part, str) else part
