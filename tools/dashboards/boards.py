"""What a dashboard shows, as data. Nothing here knows Grafana but for the names of its units and variables.

Queries may use ``$namespace`` and ``$run``, which the viewer chooses, and ``$__rate_interval``, four scrapes or more.
"""

from dataclasses import dataclass
from enum import StrEnum


class Unit(StrEnum):
    """Units of a plot's values, by Grafana's ids."""

    NONE = "none"
    SHARE = "percentunit"
    """A share from 0 to 1, shown as per cent."""
    SECONDS = "s"
    BYTES = "bytes"
    NATS = "suffix: nats"
    TOKENS_A_SECOND = "suffix: tokens/s"
    A_SECOND = "suffix: /s"
    VERSIONS = "suffix: versions"
    STEPS = "suffix: steps"
    GPUS = "suffix: GPUs"


@dataclass(frozen=True)
class Query:
    """Lines of a plot."""

    expr: str
    legend: str
    """May hold ``{{label}}``."""


@dataclass(frozen=True)
class Plot:
    """One panel of lines over time."""

    title: str
    unit: Unit
    text: str
    """What a reader learns from it."""
    queries: tuple[Query, ...]
    stacked: bool = False


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    plots: tuple[Plot, ...]


@dataclass(frozen=True)
class Mark:
    """Moments that are marked in every panel: where ``expr`` has a value."""

    name: str
    expr: str


@dataclass(frozen=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    text: str
    rows: tuple[Row, ...]
    chosen: tuple[tuple[str, str], ...] = ()
    """Variables that the viewer chooses: name, and the query of its values."""
    marks: tuple[Mark, ...] = ()
