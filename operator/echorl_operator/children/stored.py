"""A pod template as the API server writes it back: quantities in its notation, without what it leaves out.

A desired value that a live object never shows would be applied for ever.
"""

from collections.abc import Mapping
from typing import Any

from echorl_operator.quantities import canonical

_QUANTITY_MAPS = frozenset({"requests", "limits"})
_QUANTITY_FIELDS = frozenset({"sizeLimit", "divisor"})
_OMITTED_FALSE = frozenset({"readOnly", "stdin", "stdinOnce", "tty", "shareProcessNamespace", "hostNetwork"})
"""Fields that are left out where they are false; others are pointers, and kept."""
_OMITTED_ZERO = frozenset({"initialDelaySeconds", "hostPort"})
_OMITTED_EMPTY = frozenset({"nodeSelector", "labels", "annotations", "requests", "limits", "overhead"})


def stored(part: Any) -> Any:
    """A copy of a template, or of a part of one, in the API server's form.

    Raises:
        ValueError: names the field that is no quantity.
    """
    if isinstance(part, list):
        return [stored(item) for item in part]
    if not isinstance(part, Mapping):
        return part
    return {key: _field(key, item) for key, item in part.items() if not _left_out(key, item)}


def _left_out(key: str, item: Any) -> bool:
    if item is None or item == []:
        return True
    if item is False:
        return key in _OMITTED_FALSE
    if item == "":
        return key == "value"
    return (item == {} and key in _OMITTED_EMPTY) or (item == 0 and key in _OMITTED_ZERO)


def _field(key: str, item: Any) -> Any:
    if key in _QUANTITY_MAPS and isinstance(item, Mapping):
        return {name: _named(f"{key}.{name}", quantity) for name, quantity in item.items()}
    if key in _QUANTITY_FIELDS and isinstance(item, str | int):
        return _named(key, item)
    return stored(item)


def _named(field: str, quantity: Any) -> str:
    try:
        return canonical(quantity)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error
