"""Moments of per-token values by source, kept on the device: mean, standard deviation, minimum and maximum."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

STATISTICS = ("", "_std", "_min", "_max")
"""Endings of a metric's name: mean, standard deviation (of all tokens, so divided by their number), min, max."""


@dataclass
class Moments:
    """Moments of M measures over the tokens of S sources."""

    sums: Tensor
    """Sums and sums of squares, float64 [2, S, M]."""
    bounds: Tensor
    """Smallest and largest values, float64 [2, S, M]; inf and -inf where there is no token."""

    @classmethod
    def empty(cls, sources: int, measures: int, device: torch.device) -> "Moments":
        """Make moments in which nothing is counted."""
        sums = torch.zeros(2, sources, measures, dtype=torch.float64, device=device)
        bounds = torch.full_like(sums, math.inf)
        bounds[1] = -math.inf
        return cls(sums, bounds)

    def add(self, source: Tensor, values: Tensor, counted: Tensor) -> None:
        """Add K tokens; waits for nothing.

        Args:
            source: int64 [K], each token's source.
            values: [K, M].
            counted: bool [K, M], false where the measure does not hold for the token.
        """
        values = values.double()
        known = torch.where(counted, values, 0.0)
        self.sums.index_add_(1, source, torch.stack([known, known.square()]))
        rows = source[:, None].expand_as(values)
        self.bounds[0].scatter_reduce_(0, rows, torch.where(counted, values, math.inf), "amin")
        self.bounds[1].scatter_reduce_(0, rows, torch.where(counted, values, -math.inf), "amax")

    def merge(self, rows: list[int], other: "Moments") -> None:
        """Add the moments of another whose sources are ``rows`` here."""
        self.sums[:, rows] += other.sums
        self.bounds[0, rows] = torch.minimum(self.bounds[0, rows], other.bounds[0])
        self.bounds[1, rows] = torch.maximum(self.bounds[1, rows], other.bounds[1])

    def statistics(self, rows: list[int], measure: int, tokens: float) -> dict[str, float | None]:
        """Compute ``STATISTICS`` of one measure over the ``tokens`` of some sources; None where there is no token."""
        if not tokens:
            return dict.fromkeys(STATISTICS)
        total, squares = self.sums[:, rows, measure].sum(dim=1).tolist()
        low, high = float(self.bounds[0, rows, measure].min()), float(self.bounds[1, rows, measure].max())
        mean = total / tokens
        # Rounding leaves a little above or below 0 of values that are all alike. NaN stays NaN.
        variance = 0.0 if low == high else max(squares / tokens - mean * mean, 0.0)
        return dict(zip(STATISTICS, (mean, math.sqrt(variance), low, high), strict=True))
