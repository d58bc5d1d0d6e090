"""Whether a child must be applied: only when what is desired is not in what is there. Pure.

The API server adds defaults and other managers add fields, so equality would apply for ever; asking the server with a
dry run costs more than all the rest of a pass.
"""

import re
from collections.abc import Hashable, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from echorl_operator.names import ANNOTATION_HASH

# Lists whose elements are found by key, as server-side apply merges them; all others compare by position and length.
_MERGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
}
_SETS = frozenset({"finalizers", "accessModes"})
_QUANTITIES = frozenset(
    {("limits", "*"), ("requests", "*"), ("emptyDir", "sizeLimit"), ("resourceFieldRef", "divisor")}
)

_QUANTITY = re.compile(r"([+-]?[0-9]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)([KMGTPE]i|[numkMGTPE])?")
_SUFFIXES = {
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    "n": Decimal(10) ** -9,
    "u": Decimal(10) ** -6,
    "m": Decimal(10) ** -3,
    "": Decimal(1),
}


def needs_apply(desired: Mapping[str, Any], live_body: bytes | Mapping[str, Any]) -> bool:
    """True unless everything in ``desired`` is in the live object with the same value.

    An element taken out of a keyed list is still a subset; that is why the hash annotation must be the same, too.
    A key whose desired value is null or an empty list counts as absent. Kind and API version are not compared: items of
    a list come without them.

    Args:
        desired: What would be applied.
        live_body: ``ChildRecord.body``. Empty, as of a Secret, there is nothing to compare: False.
    """
    if not live_body:
        return False
    live = msgspec.json.decode(live_body) if isinstance(live_body, bytes) else live_body
    if _annotation(desired) != _annotation(live):
        return True
    wanted = {key: value for key, value in desired.items() if key not in ("apiVersion", "kind")}
    return not _within(wanted, live, ())


def quantity(text: str | int | float) -> Decimal:
    """The number that a Kubernetes quantity stands for: ``1000m`` is 1, ``1Gi`` is 1073741824.

    Raises:
        ValueError: it is none.
    """
    match = _QUANTITY.fullmatch(str(text))
    try:
        number = Decimal(match[1]) if match else None
    except InvalidOperation:
        number = None
    if match is None or number is None:
        raise ValueError(f"quantity: found {text!r}, accepted are forms such as 500m, 2, 1.5Gi")
    return number * _SUFFIXES[match[2] or ""]


def _annotation(body: Mapping[str, Any]) -> object:
    annotations = (body.get("metadata") or {}).get("annotations") or {}
    return annotations.get(ANNOTATION_HASH)


def _within(desired: Any, live: Any, path: tuple[str, ...]) -> bool:
    if isinstance(desired, Mapping):
        return isinstance(live, Mapping) and all(
            _absent(value) or (key in live and _within(value, live[key], (*path, key)))
            for key, value in desired.items()
        )
    if isinstance(desired, list):
        return isinstance(live, list) and _list_within(desired, live, path)
    return _same(desired, live, path)


def _absent(value: Any) -> bool:
    return value is None or value == []


def _list_within(desired: list[Any], live: list[Any], path: tuple[str, ...]) -> bool:
    field = path[-1] if path else ""
    if field in _SETS:
        return all(item in live for item in desired)
    wanted, there = _by_key(field, desired), _by_key(field, live)
    if wanted is not None and there is not None:
        return all(key in there and _within(item, there[key], path) for key, item in wanted.items())
    return len(desired) == len(live) and all(
        _within(mine, theirs, path) for mine, theirs in zip(desired, live, strict=True)
    )


def _by_key(field: str, items: Iterable[Any]) -> dict[Hashable, Any] | None:
    """Elements by their merge key; None if the list has none, or an element lacks it or shares it."""
    by_key: dict[Hashable, Any] = {}
    for item in items:
        key = _key(field, item)
        if key is None or key in by_key:
            return None
        by_key[key] = item
    return by_key


def _key(field: str, item: Any) -> Hashable | None:
    if not isinstance(item, Mapping):
        return None
    if field == "ports":
        number = item.get("containerPort", item.get("port"))
        return None if number is None else (number, item.get("protocol", "TCP"))
    names = _MERGE_KEYS.get(field)
    if names is None or not all(isinstance(item.get(name), str) for name in names):
        return None
    return tuple(item[name] for name in names)


def _same(desired: Any, live: Any, path: tuple[str, ...]) -> bool:
    if type(desired) is type(live) and desired == live:
        return True
    if isinstance(desired, bool) or isinstance(live, bool):
        return False
    if isinstance(desired, int | float) and isinstance(live, int | float):
        return desired == live
    return _is_quantity(path) and _same_quantity(desired, live)


def _is_quantity(path: tuple[str, ...]) -> bool:
    return len(path) > 1 and (path[-2:] in _QUANTITIES or (path[-2], "*") in _QUANTITIES)


def _same_quantity(desired: Any, live: Any) -> bool:
    try:
        return quantity(desired) == quantity(live)
    except ValueError:
        return False
