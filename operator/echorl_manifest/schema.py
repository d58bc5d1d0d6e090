"""What the models accept, in words: shared by error messages, dotted overrides and the reference page."""

import difflib
import json
from collections.abc import Iterable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic.fields import FieldInfo

from echorl_manifest.models.base import Accepts, ApiModel

Segment = str | int
Location = tuple[Segment, ...]

LONGEST_FOUND = 80
"""Characters of a value in an error message."""


def path_text(location: Location) -> str:
    """``spec.environments.train[0].name``."""
    text = ""
    for segment in location:
        if isinstance(segment, int):
            text += f"[{segment}]"
        elif segment.replace("-", "").replace("_", "").isalnum():
            text += f".{segment}" if text else segment
        else:
            text += f"[{json.dumps(segment)}]"
    return text or "manifest"


def is_model(annotation: Any) -> bool:
    """Whether a bare annotation is one of the manifest's models."""
    return isinstance(annotation, type) and issubclass(annotation, ApiModel)


def keys(model: type[ApiModel]) -> dict[str, FieldInfo]:
    """Fields by the key that a manifest uses."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def offered_keys(model: type[ApiModel]) -> list[str]:
    """Keys that a user may want to set: all but those that only a cluster writes (they hold anything)."""
    return [key for key, field in keys(model).items() if field.annotation is not Any]


def bare(annotation: Any) -> Any:
    """An annotation without its metadata and without None."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
            continue
        if get_origin(annotation) in {Union, UnionType}:
            options = [option for option in get_args(annotation) if option is not NoneType]
            if len(options) == 1:
                annotation = options[0]
                continue
        return annotation


def _item(annotation: Any, index: int) -> Any:
    if get_origin(annotation) is not tuple:
        return None
    items = [item for item in get_args(annotation) if item is not Ellipsis]
    return items[index] if index < len(items) else items[-1]


def inside(annotation: Any, segment: Segment) -> Any:
    """Annotation of what stands under ``segment``; None when nothing may. Free-form mappings hold Any."""
    core = bare(annotation)
    if core is Any:
        return Any
    if isinstance(segment, int):
        return _item(core, segment)
    if is_model(core):
        field = keys(core).get(segment)
        return None if field is None else field.rebuild_annotation()
    if get_origin(core) is dict:
        return get_args(core)[1]
    return None


def known(root: type[ApiModel], location: Sequence[Any]) -> tuple[Location, Any]:
    """The longest part of ``location`` that the models know, and the annotation there."""
    annotation: Any = root
    for depth, segment in enumerate(location):
        deeper = inside(annotation, segment) if isinstance(segment, str | int) else None
        if deeper is None:
            return tuple(location[:depth]), annotation
        annotation = deeper
    return tuple(location), annotation


def nearest(word: object, options: Iterable[str]) -> str | None:
    """The option that was most likely meant; None when none is close."""
    by_lower = {option.lower(): option for option in options}
    close = difflib.get_close_matches(str(word).lower().replace("_", ""), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def found_text(value: object) -> str:
    """A value as an error message shows it."""
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}" if value else "an empty list"
    if type(value) is int and value.bit_length() > 4 * LONGEST_FOUND:
        return f"a whole number of {value.bit_length():,} bits"  # Python writes no number of any length
    if value is None or isinstance(value, bool | int | float | str):
        text = json.dumps(value, ensure_ascii=False)
    else:
        text = repr(value)
    return text if len(text) <= LONGEST_FOUND else f"{text[: LONGEST_FOUND - 3]}..."


def _metadata(annotation: Any) -> list[Any]:
    """Metadata of an annotation, that inside an optional included."""
    if get_origin(annotation) is Annotated:
        core, *metadata = get_args(annotation)
        flat = [entry for item in metadata for entry in (item.metadata if isinstance(item, FieldInfo) else [item])]
        return [*_metadata(core), *flat]
    if get_origin(annotation) in {Union, UnionType}:
        options = [option for option in get_args(annotation) if option is not NoneType]
        if len(options) == 1:
            return _metadata(options[0])
    return []


def literals(annotation: Any) -> tuple[str, ...]:
    """Words that an annotation accepts; empty unless it is an enumeration."""
    core = bare(annotation)
    return get_args(core) if get_origin(core) is Literal else ()


def _bounds(metadata: list[Any]) -> str:
    words = []
    for entry in metadata:
        match entry:
            case Ge(ge=bound):
                words.append(f"at least {bound}")
            case Gt(gt=bound):
                words.append(f"above {bound}")
            case Le(le=bound):
                words.append(f"at most {bound}")
            case Lt(lt=bound):
                words.append(f"below {bound}")
            case _:
                continue
    return ", ".join(words)


def _length(metadata: list[Any]) -> str:
    low = next((entry.min_length for entry in metadata if isinstance(entry, MinLen)), 0)
    high = next((entry.max_length for entry in metadata if isinstance(entry, MaxLen)), None)
    if high is None:
        return f"at least {low} of " if low else ""
    return f"{low} to {high} of "


def _container_text(core: Any, metadata: list[Any]) -> str:
    arguments = get_args(core)
    if get_origin(core) is tuple:
        return f"a list: {_length(metadata)}({accepted_text(arguments[0])})"
    if get_origin(core) is dict:
        return f"a mapping from text to ({accepted_text(arguments[1])})"
    return " or ".join(accepted_text(option) for option in arguments)


def accepted_text(annotation: Any) -> str:
    """What an annotation accepts, in words."""
    metadata = _metadata(annotation)
    if described := [entry.text for entry in metadata if isinstance(entry, Accepts)]:
        return described[-1]
    core = bare(annotation)
    if words := literals(core):
        return " or ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} or {words[-1]}"
    if is_model(core):
        return f"a mapping with the keys {', '.join(offered_keys(core))}"
    scalars = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text", Any: "any value"}
    if core in scalars:
        bounds = _bounds(metadata)
        return f"{scalars[core]}, {bounds}" if bounds else scalars[core]
    return _container_text(core, metadata)
