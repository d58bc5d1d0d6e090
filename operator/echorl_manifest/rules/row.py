"""A rule between fields as data: one row of ``table``. ``checks`` reads it in Python, ``echorl_manifest.crd`` as CEL.

A row stands at places in the schema, such as ``spec.environments.train[].members{}``, and names fields below them. It
is looked at where its place is written in the manifest. A condition's path is below the place too, or begins with
``spec.``; a field that is not written has its default.
"""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Condition:
    """When a row applies."""

    paths: tuple[str, ...]
    """Fields; one of them is enough."""
    values: tuple[Any, ...] | None = None
    """What a field's value is one of; None: anything, as long as it holds something."""
    holds: bool = True
    """False: the opposite."""
    pattern: str | None = None
    """A regular expression that a field of text matches somewhere; None: ``values`` tell."""

    @property
    def is_absolute(self) -> bool:
        """Whether the paths are those of the whole spec."""
        return self.paths[0].startswith("spec.")

    @property
    def is_open(self) -> bool:
        """Whether a wrong value, which counts as none, can make the condition true."""
        return self.values is not None or self.pattern is not None or not self.holds


def has(path: str, *values: Any) -> Condition:
    """The field has one of the values."""
    return Condition((path,), values)


def has_other(path: str, *values: Any) -> Condition:
    """The field has none of the values."""
    return Condition((path,), values, holds=False)


def like(path: str, pattern: str) -> Condition:
    """The field, a text, matches a regular expression somewhere."""
    return Condition((path,), pattern=pattern)


def unlike(path: str, pattern: str) -> Condition:
    """The field, a text, does not."""
    return Condition((path,), holds=False, pattern=pattern)


def given(*paths: str) -> Condition:
    """One of the fields is set, and no empty list."""
    return Condition(paths)


def absent(*paths: str) -> Condition:
    """None of the fields is given."""
    return Condition(paths, holds=False)


@dataclass(frozen=True)
class Refused:
    """A field must not be written, or not with some values, while all conditions hold."""

    places: tuple[str, ...]
    field: str
    when: tuple[Condition, ...]
    reason: str
    accepted: str = "no value"
    only: tuple[Any, ...] | None = None
    """Values that are refused; None: every one."""
    but: tuple[Any, ...] = ()
    """Values that are not."""
    found: str = ""
    """What is told instead of the value. The problem then does not rest on the value, which may be wrong as well."""
    in_cel: bool = True
    """Whether the API server can see the field."""


@dataclass(frozen=True)
class Needed:
    """A field must be given while all conditions hold."""

    places: tuple[str, ...]
    field: str
    when: tuple[Condition, ...]
    accepted: str
    reason: str = ""


@dataclass(frozen=True)
class Compared:
    """A number must be as another one asks. Without a default of its own it is compared where both are set."""

    places: tuple[str, ...]
    field: str
    sign: Literal["at least", "a number below", "a multiple of"]
    other: str
    reason: str = ""
    when: tuple[Condition, ...] = ()
    defaults: tuple[float, float] | None = None
    """Of the field and of the other, where the models have none."""


Row = Refused | Needed | Compared


def only_for(
    places: tuple[str, ...], field: str, key: str, *values: str, reason: str = "", in_cel: bool = True
) -> Refused:
    """``field`` is accepted only while ``key`` has one of the values."""
    told = reason or f"only for {key.rpartition('.')[2]} {' and '.join(values)}"
    return Refused(places, field, (has_other(key, *values),), told, in_cel=in_cel)


def exclusive(places: tuple[str, ...], first: str, second: str) -> Refused:
    """At most one of two fields; the second is told."""
    return Refused(places, second, (given(first),), "", f"exactly one of {first} and {second}")
