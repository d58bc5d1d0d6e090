"""What monitors are told: numbers by name, from the rows of records. Pure functions."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of one step, or of one eval."""

    axis: str
    """What ``at`` counts: ``step``, or ``eval/step`` for evals, which end later than the step that they are of."""
    at: int
    values: dict[str, float]


def step_values(row: Mapping[str, Any], engines: Mapping[str, Any]) -> Row:
    """A row of steps.jsonl and what the engines say at that time, as ``engines/<name>``."""
    told = {f"engines/{name}": value for name, value in engines.items()}
    return Row(axis="step", at=int(row["step"]), values=numbers({**row, **told}, without="step"))


def eval_values(row: Mapping[str, Any]) -> Row:
    """A row of evals.jsonl, as ``eval/<environment>/<name>``."""
    figures = numbers(row, without="step")
    values = {f"eval/{row['environment']}/{name}": value for name, value in figures.items()}
    return Row(axis="eval/step", at=int(row["step"]), values=values)


def numbers(row: Mapping[str, Any], *, without: str) -> dict[str, float]:
    """Finite numbers of a row; truth values, text and everything nested are left out, and so is ``without``."""
    return {
        name: value
        for name, value in row.items()
        if type(value) in {int, float} and math.isfinite(value) and name != without
    }
