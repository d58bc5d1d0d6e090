"""Asks a Prometheus what a dashboard's panels would show."""

import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TIMEOUT_S = 30.0
_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True)
class Line:
    """One line of a panel."""

    name: str
    points: tuple[tuple[float, float], ...]
    """Seconds since the epoch, and the value; only finite ones."""


@dataclass(frozen=True)
class Span:
    """The time that is looked at, seconds since the epoch, and between two points."""

    start: float
    end: float
    step_s: float


@dataclass(frozen=True)
class Prometheus:
    """The HTTP API of a Prometheus."""

    url: str
    """Such as http://127.0.0.1:9090."""

    def ask(self, path: str, **parameters: str | float) -> Any:
        """The data of an answer.

        Raises:
            ValueError: it refused; says what and why.
            OSError: it does not answer.
        """
        body = urllib.parse.urlencode(parameters).encode()
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", data=body or None)  # noqa: S310 - ours
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{path} {parameters}: {error.read().decode(errors='replace')}") from error

    def lines(self, expr: str, legend: str, span: Span) -> list[Line]:
        """A range query's series that have a finite value."""
        data = self.ask("query_range", query=expr, start=span.start, end=span.end, step=span.step_s)
        lines = []
        for series in data["result"]:
            points = tuple((when, float(value)) for when, value in series["values"] if math.isfinite(float(value)))
            if points:
                lines.append(Line(_named(legend, series["metric"]), points))
        return lines


@dataclass(frozen=True)
class Target:
    """One query of a panel."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel of a dashboard's JSON."""

    title: str
    unit: str
    targets: tuple[Target, ...]
    row: str
    """Title of the row that it stands in."""


def panels(file: Path, chosen: Mapping[str, str]) -> Iterator[Panel]:
    """Panels of a dashboard, with the variables that a viewer has chosen put in: ``run``, ``__rate_interval``, ..."""
    row = ""
    for panel in json.loads(file.read_text())["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
            continue
        targets = (Target(_filled(target["expr"], chosen), target["legendFormat"]) for target in panel["targets"])
        yield Panel(panel["title"], panel["fieldConfig"]["defaults"]["unit"], tuple(targets), row)


def marks(file: Path, chosen: Mapping[str, str]) -> list[Target]:
    """Queries of a dashboard's annotations."""
    annotations = json.loads(file.read_text()).get("annotations", {}).get("list", [])
    return [Target(_filled(mark["expr"], chosen), mark["name"]) for mark in annotations if "expr" in mark]


def _filled(expr: str, chosen: Mapping[str, str]) -> str:
    for name, value in chosen.items():
        expr = expr.replace(f"${name}", value)
    return expr


def _named(legend: str, labels: Mapping[str, str]) -> str:
    return _LABEL.sub(lambda match: labels.get(match[1], ""), legend)
