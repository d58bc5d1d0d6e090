"""Medians, spreads and the table."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all does not exceed; ``values`` sorted."""
    return values[min(len(values) - 1, max(0, -(-int(share * len(values) * 1000) // 1000) - 1))]


def spread(values: Sequence[float]) -> str:
    """Median, lowest and highest; empty if there are none."""
    if not values:
        return ""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def applied_table(rows: Sequence[dict[str, Any]]) -> str:
    """All sides, from the rows of ``applying``; ratios are of the operator to another side of the same repetition."""
    sides = {name: [row for row in rows if row["side"] == name] for name in ("bare", "staged", "operator")}
    measures: dict[str, Callable[[dict[str, Any]], float]] = {
        "all children applied, s": lambda row: float(row["applied_s"]),
        "writes of children": lambda row: float(row["children_writes"]),
        "CPU of the client, s": lambda row: float(row["client_cpu_s"]),
        "CPU of all that takes part till then, s": lambda row: float(sum(row["cpu_s"].values())),
    }
    lines = ["| | bare client | staged client | operator | to bare | to staged |", "|---|---|---|---|---|---|"]
    for title, read in measures.items():
        values = {name: [read(row) for row in found] for name, found in sides.items()}
        cells = [spread(values[name]) for name in ("bare", "staged", "operator")]
        cells += [_ratio(values["operator"], values[name]) for name in ("bare", "staged")]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    for title, of in _alone(sides["operator"]).items():
        lines.append(f"| {title} | | | {spread(of)} | | |")
    return "\n".join(lines)


def _alone(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    if not rows:
        return {}
    per_run = {
        f"writes per run until nothing is left to do: {name}": [row["writes"][name] / row["runs"] for row in rows]
        for name in rows[0]["writes"]
    }
    return {"all pods ready, s": [float(row["ready_s"]) for row in rows], **per_run}


def _ratio(mine: Sequence[float], theirs: Sequence[float]) -> str:
    return spread([one / other for one, other in zip(mine, theirs, strict=False)])
