"""``spec.<role>.template``: the user's overlay on the pod template that we build.

Maps are merged key by key; containers, initContainers, env, volumes, volumeMounts and tolerations item by item, by
their names; other lists are replaced. ``null`` means not set, as everywhere in the manifest: it removes nothing.
"""

from collections.abc import Mapping
from typing import Any

from echorl_operator.children.overlay_rules import overlay_problems

MERGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "tolerations": ("key", "effect"),
}
"""What an item of a list is known by."""

_HANDLERS = frozenset({"exec", "httpGet", "tcpSocket", "grpc"})
_PROBES = frozenset({"startupProbe", "livenessProbe", "readinessProbe"})


class OverlayRefused(ValueError):
    """The overlay asks for what templates may not set; the message has one line for each problem."""


def merged(template: Mapping[str, Any], overlay: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A copy of a pod template with an overlay on it. Merging the same overlay again changes nothing.

    Args:
        template: ours: ``{"metadata": ..., "spec": ...}``.
        overlay: the user's, of the same shape.
        path: of the overlay in the manifest, for messages.

    Raises:
        OverlayRefused: see ``overlay_problems``.
    """
    if problems := overlay_problems(overlay, path):
        raise OverlayRefused("\n".join(str(problem) for problem in problems))
    return _maps(template, overlay)


def _maps(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = {key: _copy(value) for key, value in base.items()}
    for key, value in over.items():
        if value is None:
            continue
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping):
            below = _without_other_handlers(base[key], value) if key in _PROBES else base[key]
            result[key] = _maps(below, value)
        elif _has_names(key, value) and _has_names(key, base.get(key, [])):
            result[key] = _items(key, base.get(key, []), value)
        else:
            result[key] = _copy(value)
    return result


def _has_names(field: str, items: Any) -> bool:
    """Whether a value is a list that is merged item by item."""
    keys = MERGE_KEYS.get(field)
    return keys is not None and isinstance(items, list) and all(_is_named(item, keys) for item in items)


def _is_named(item: Any, keys: tuple[str, ...]) -> bool:
    return isinstance(item, Mapping) and all(isinstance(item.get(key), str | None) for key in keys)


def _items(field: str, base: list[Any], over: list[Any]) -> list[Any]:
    result = {_name(field, item): _copy(item) for item in base}
    for item in over:
        name = _name(field, item)
        result[name] = _item(field, result.get(name, {}), item)
    return list(result.values())


def _item(field: str, base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    if field == "env" and ({"value", "valueFrom"} & over.keys()):
        return _maps({}, over)
    if field == "volumes" and _sources(over) - _sources(base):
        # A volume has one source; of two the API server would take none.
        return _maps({}, over)
    return _maps(base, over)


def _sources(volume: Mapping[str, Any]) -> set[str]:
    return {key for key, value in volume.items() if key != "name" and value is not None}


def _without_other_handlers(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {key for key in _HANDLERS if over.get(key) is not None}
    dropped = _HANDLERS - wanted if wanted else frozenset()
    return {key: value for key, value in base.items() if key not in dropped}


def _name(field: str, item: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(item.get(key) for key in MERGE_KEYS[field])


def _copy(value: Any) -> Any:
    """The value without nulls in its maps."""
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value
