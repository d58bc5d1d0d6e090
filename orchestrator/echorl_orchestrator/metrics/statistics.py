"""Statistics of a sequence of numbers, as columns of a record."""

import math
from collections.abc import Iterable

Columns = dict[str, float | int | None]


def statistics(numbers: Iterable[float]) -> Columns:
    """``mean``, ``std`` (of the population), ``min``, ``max``; None where there is nothing."""
    values = list(numbers)
    if not values:
        return {"mean": None, "std": None, "min": None, "max": None}
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return {"mean": mean, "std": std, "min": min(values), "max": max(values)}
