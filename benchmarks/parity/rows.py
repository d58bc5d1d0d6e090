"""A line of the table: what was compared with what, and how far apart they were."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BOUND = 1e-6


@dataclass(frozen=True)
class Row:
    """One comparison; errors are the largest over all seeds."""

    what: str
    against: str
    value: float
    """Relative error of the value: of a loss, or the largest over advantages."""
    gradient: float | None = None
    """Largest relative error of a token's gradient; None where there is none."""

    @property
    def within(self) -> bool:
        """Whether both errors are within the bound; NaN is not."""
        return self.value <= BOUND and (self.gradient is None or self.gradient <= BOUND)


def relative(found: Tensor, wanted: Tensor, scale: float = 0.0) -> float:
    """Largest ``|found - wanted| / max(|wanted|, scale)`` over elements, in float64; equal zeros count as 0."""
    difference = (found.double() - wanted.double()).abs()
    size = wanted.double().abs().clamp(min=scale)
    return float(torch.where(difference == 0, 0.0, difference / size).max())


def largest(rows: Sequence[Row]) -> Row:
    """One row for several seeds."""
    first = rows[0]
    gradients = [row.gradient for row in rows if row.gradient is not None]
    return Row(first.what, first.against, max(row.value for row in rows), max(gradients) if gradients else None)


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| what | against | value | gradient |", "|---|---|---|---|"]
    for row in rows:
        gradient = "" if row.gradient is None else f"{row.gradient:.1e}"
        lines.append(f"| {row.what} | {row.against} | {row.value:.1e} | {gradient} |")
    return "\n".join(lines)
