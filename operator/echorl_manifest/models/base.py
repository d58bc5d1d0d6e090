"""What every part of the manifest is made of: the strict base model and the text types."""

import json
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

API_GROUP = "echorl.dev"
VERSION = "v1alpha1"
API_VERSION = f"{API_GROUP}/{VERSION}"
KIND = "EchoRLRun"
PLURAL = "echorlruns"

MAX_DEPTH = 32
_BITS = 63
_TOO_WIDE = object()
_MOST_DIGITS = 99
"""Of a whole number that is read back from text, its sign included in a hundred characters."""
_MAX_JSON_BYTES = 128 * 1024
"""All of a run goes through one annotation of kubectl's (256 KiB) and into one ConfigMap (1 MiB)."""
_MAX_ANNOTATIONS = 256 * 1024

_LONGEST_S = 2**63 / 1e9  # what a Kubernetes duration can hold
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"[0-9]+([.][0-9]+)?"
_DURATION = "".join(f"({_NUMBER}{unit})?" for unit in ("h", "m", "s", "ms", "(us|µs)", "ns"))
_TIMES = {"": 1} | {
    unit + suffix: base**power
    for suffix, base, units in (("i", 1024, "KMGTP"), ("", 1000, "kMGTP"))
    for power, unit in enumerate(units, start=1)
}
_QUANTITY = r"\d+(\.\d+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?"
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)", re.ASCII)


class ApiModel(BaseModel):
    """Base of all parts: camelCase keys, no unknown key, no coercion, immutable; ``null`` means not set."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        alias_generator=to_camel,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_set(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias for field in cls.model_fields.values()}
        taken = {key: value for key, value in data.items() if value is not None or key not in known}
        # No field takes what JSON's readers cannot: as none of any type it is refused where it stands.
        wide = {key: _TOO_WIDE for key, value in taken.items() if type(value) is int and value.bit_length() > _BITS}
        return {**taken, **wide}


@dataclass(frozen=True)
class Accepts:
    """Metadata of a type: what it accepts, in words. Errors, the reference and the CRD say it."""

    text: str
    check: str = ""
    """CEL over ``self`` for what a JSON schema cannot say; the CRD checks it."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The type's schema, with both under ``x-accepts``."""
        return {**handler(core_schema), "x-accepts": {"text": self.text, "check": self.check}}


def duration_seconds(text: str) -> float:
    """Seconds of a duration in Go form: ``10m``, ``1h30m``, ``1.5s``; each unit once, the largest first.

    Raises:
        ValueError: the text is no such duration, is zero, or is longer than 292 years.
    """
    if not re.fullmatch(_DURATION, text, re.ASCII):
        raise ValueError("no duration")
    parts = _DURATION_PART.findall(text)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not 1e-9 <= seconds < _LONGEST_S:
        raise ValueError("no positive duration")
    return seconds


def quantity_number(text: str) -> float:
    """The number that a Kubernetes quantity stands for: ``16Gi``, ``1.5G``; bytes, where it is of bytes.

    Raises:
        ValueError: the text is no such quantity.
    """
    found = re.fullmatch(_QUANTITY, text, re.ASCII)
    if found is None:
        raise ValueError("no quantity")
    suffix = found[2] or ""
    times: int = _TIMES[suffix]
    return float(text.removesuffix(suffix)) * times


def _is_duration(text: str) -> str:
    duration_seconds(text)
    return text


def _is_positive(quantity: str) -> str:
    if not any(digit in quantity for digit in "123456789"):
        raise ValueError("zero")
    return quantity


def _unusable(value: Any, path: str, depth: int) -> str | None:
    """Path and kind of the first value that JSON cannot hold, or that is not read back; None if there is none."""
    if depth > MAX_DEPTH:
        return f"values nested deeper than {MAX_DEPTH} levels"
    if value is None or isinstance(value, bool | str):
        return None
    if isinstance(value, int | float):
        return _unusable_number(value, path or ".")
    if isinstance(value, list):
        items = ((f"{path}[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, dict):
        if bad := [key for key in value if not isinstance(key, str)]:
            return f"the key {bad[0]!r} at {path or '.'}"
        items = ((f"{path}.{key}", item) for key, item in value.items())
    else:
        return f"a {type(value).__name__} at {path or '.'}"
    return next((found for name, item in items if (found := _unusable(item, name, depth + 1))), None)


def _unusable_number(value: float, path: str) -> str | None:
    if isinstance(value, int):
        return (
            f"a whole number of more than {_MOST_DIGITS} digits at {path}" if abs(value) >= 10**_MOST_DIGITS else None
        )
    return None if math.isfinite(value) else f"{value} at {path}"


def _is_json(value: dict[str, Any]) -> dict[str, Any]:
    if found := _unusable(value, "", 0):
        raise ValueError(found)
    if (size := len(json.dumps(value, ensure_ascii=False).encode(errors="replace"))) > _MAX_JSON_BYTES:
        raise ValueError(f"{size:,} bytes of JSON")
    return value


def _are_labels(labels: dict[str, str]) -> dict[str, str]:
    for key, value in labels.items():
        _check_key(key)
        if len(value) > 63 or not re.fullmatch(f"({_WORD})?", value, re.ASCII):
            raise ValueError(f"{_told(value)} as the value of {_told(key)}")
    return labels


def _are_annotations(annotations: dict[str, str]) -> dict[str, str]:
    for key in annotations:
        _check_key(key)
    if (size := sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())) > _MAX_ANNOTATIONS:
        raise ValueError(f"{size:,} bytes")
    return annotations


def _check_key(key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    is_prefix = not slash or (len(prefix) <= 253 and re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", prefix, re.ASCII))
    if not is_prefix or len(name) > 63 or not re.fullmatch(_WORD, name, re.ASCII):
        raise ValueError(f"the key {_told(key)}")


def _told(text: str) -> str:
    return json.dumps(text if len(text) <= 60 else f"{text[:57]}...", ensure_ascii=False)


_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOTTED = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
IMPORT_PATH = rf"{_DOTTED}:{_DOTTED}"

Text = Annotated[str, Field(min_length=1, max_length=1024), Accepts("text of 1 to 1024 characters")]
# Names of Services begin with it, and those begin with a letter.
RunName = Annotated[
    str,
    Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=40),
    Accepts("at most 40 lower-case letters, digits and '-', with a letter first and a letter or digit last"),
]
DnsLabel = Annotated[
    str,
    Field(pattern=rf"^{_LABEL}$", max_length=63),
    Accepts("at most 63 lower-case letters, digits and '-', with a letter or digit first and last"),
]
ObjectName = Annotated[
    str,
    Field(pattern=rf"^{_LABEL}(\.{_LABEL})*$", max_length=253),
    Accepts("the name of a Kubernetes object: lower-case letters, digits, '-' and '.'"),
]
ImportPath = Annotated[
    str, Field(pattern=rf"^{IMPORT_PATH}$", max_length=512), Accepts("an import path such as 'pkg.module:name'")
]
HttpUrl = Annotated[
    str,
    Field(pattern=r"^https?://[^\s@/]+(/[^\s@]*)?$", max_length=1024),
    Accepts("an address such as https://host.example.com, without a password"),
]
Duration = Annotated[
    str,
    Field(pattern=f"^{_DURATION}$", min_length=2, max_length=32),
    AfterValidator(_is_duration),
    Accepts(
        "a duration such as 30s, 10m or 1h30m",
        "duration(self) > duration('0s')",
    ),
]
Quantity = Annotated[
    str,
    Field(pattern=f"^{_QUANTITY}$", max_length=32),
    AfterValidator(_is_positive),
    Accepts(
        "a Kubernetes quantity above 0, such as 500Gi",
        "isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
    ),
]
Time = Annotated[
    str, Field(max_length=64, json_schema_extra={"format": "date-time"}), Accepts("a time such as 2026-01-31T12:00:00Z")
]
"""A time as the API server writes it: ``2026-01-31T12:00:00Z``."""
JsonObject = Annotated[
    dict[str, Any],
    Field(max_length=256),
    AfterValidator(_is_json),
    Accepts("a mapping with at most 256 text keys and any finite JSON values, at most 128 KiB in all"),
]
Labels = Annotated[
    dict[str, str],
    Field(max_length=256),
    AfterValidator(_are_labels),
    Accepts("labels of Kubernetes: keys such as team or example.com/team, values of at most 63 letters, digits, -_."),
]
Annotations = Annotated[
    dict[str, str],
    Field(max_length=256),
    AfterValidator(_are_annotations),
    Accepts("annotations of Kubernetes: keys such as owner or example.com/owner, at most 256 KiB in all"),
]
REGISTRY = r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[0-9]+)?/"
IMAGE_NAME = r"[a-z0-9]+([._/-]+[a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9+._-]+:[A-Fa-f0-9]{32,128})?"
Image = Annotated[
    str,
    Field(pattern=f"^({REGISTRY})?{IMAGE_NAME}$", max_length=1024),
    Accepts("a container image such as registry.example.com/team/trainer:1.2, with a digest or without"),
]


def is_namespace(name: str) -> bool:
    """Whether a name could be a namespace's."""
    return len(name) <= 63 and re.fullmatch(_LABEL, name, re.ASCII) is not None


class Hook(ApiModel):
    """A function of the user's own."""

    import_path: Annotated[ImportPath, Field(alias="import")]
    """Where it is found, ``pkg.module:name``."""
    kwargs: JsonObject = {}
    """Keyword arguments that it is called with."""


class PodTemplate(ApiModel):
    """What can be set on the pods of any role. No meaning on one machine."""

    image: Image | None = None
    """Container image; default from the operator's settings."""
    template: JsonObject = {}
    """Overlay of the pod template, merged by name: resources, nodeSelector, tolerations, env, volumes ..."""
