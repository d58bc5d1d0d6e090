"""Print the table; see the package's docstring."""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.parity.advantages import of_groups, rae
from benchmarks.parity.losses import TOKENS, echo, other_modes, policy_gradients
from benchmarks.parity.rows import BOUND, Row, largest, table

PARTS: tuple[Callable[[int], Iterator[Row]], ...] = (policy_gradients, other_modes, echo, of_groups, rae)

HOW = (
    "A loss: relative to the sum of its absolute terms, as they cancel. A gradient: of each token's logprob, relative "
    "to itself or a hundredth of the largest. Advantages: as sealed in float32, relative to themselves."
)


def main() -> int:
    """0 if every error is within the bound."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0")
    parser.add_argument("--out", type=Path, help="also write the table here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        largest(same) for part in PARTS for same in zip(*(part(seed) for seed in range(options.seeds)), strict=True)
    ]
    text = table(rows)
    print(f"Largest relative errors over {options.seeds} seeds of {TOKENS} tokens; bound {BOUND:.0e}. {HOW}\n\n{text}")
    if options.out is not None:
        options.out.write_text(f"{text}\n")
    over = [row for row in rows if not row.within]
    for row in over:
        print(f"over the bound: {row.what} against {row.against}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
