"""What a thread that computes in Python costs a loop of small operations beside it, by the interval of Python's lock.

    PYTHONPATH=core:trainer python3 -m benchmarks.python_lock

Forward and backward of forty small layers on one core, as a loop that Python's launches bound, alone, beside a thread
that never rests, and while a thread computes a version's delta, by turns. Each interval has a line. What the delta
costs is how much longer the steps beside it took, all together; it needs a second core that is free.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

from echorl_core.deltas import Bits, encoded
from echorl_trainer.background import SWITCH_S, share_lock

PYTHONS_S = 0.005
STEPS, WIDTH, LAYERS = 60, 64, 40
TENSORS, ELEMENTS, CHANGED = 60, 3 << 20, 0.02
"""Tensors of a version, elements of each, as in layers of a model of 0.6 B, and which share of them changes."""


def step(layers: Sequence[nn.Module], rows: torch.Tensor) -> None:
    """Forward and backward."""
    for layer in layers:
        rows = torch.relu(layer(rows))
    rows.sum().backward()


def seconds(layers: Sequence[nn.Module], rows: torch.Tensor) -> float:
    """Of a step, the mean of some."""
    began = time.perf_counter()
    for _ in range(STEPS):
        step(layers, rows)
    return (time.perf_counter() - began) / STEPS


def beside(layers: Sequence[nn.Module], rows: torch.Tensor) -> float:
    """The same while a thread computes."""
    over = threading.Event()

    def work() -> None:
        found: dict[int, str] = {}
        while not over.is_set():
            found |= {number: str(number) for number in range(500)}

    thread = threading.Thread(target=work)
    thread.start()
    try:
        return seconds(layers, rows)
    finally:
        over.set()
        thread.join()


def lost(layers: Sequence[nn.Module], rows: torch.Tensor, alone: float, pair: tuple[Bits, Bits]) -> float:
    """Seconds by which the steps beside one delta are longer, all together."""

    def work() -> None:
        for _ in range(TENSORS):
            encoded(*pair, most_bytes=pair[1].nbytes // 2)

    with ThreadPoolExecutor(1) as pool:
        began, steps = time.perf_counter(), 0
        delta = pool.submit(work)
        while not delta.done():
            step(layers, rows)
            steps += 1
        delta.result()
    return time.perf_counter() - began - steps * alone


def changed() -> tuple[Bits, Bits]:
    """A tensor of two versions."""
    chance = np.random.default_rng(1)
    before = chance.integers(0, 1 << 16, ELEMENTS, dtype="<u2")
    after: Bits = before ^ (chance.random(ELEMENTS) < CHANGED)
    return before, after


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--switch-s", type=float, nargs="+", default=[PYTHONS_S, SWITCH_S], help="intervals")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    layers, rows = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)], torch.randn(32, WIDTH)
    seconds(layers, rows)
    pair = changed()
    found: dict[float, list[tuple[float, ...]]] = {interval: [] for interval in options.switch_s}
    for _ in range(options.repeats):
        for interval, times in found.items():
            share_lock(interval)
            alone = seconds(layers, rows)
            times.append((alone, beside(layers, rows), lost(layers, rows, alone, pair)))
    print("| interval | a step | beside the thread | ÷ alone | a delta costs |\n|---|---|---|---|---|")
    for interval, times in found.items():
        alone, together, delta = (statistics.median(side) for side in zip(*times, strict=True))
        name = f"{interval * 1e3:g} ms" + (", by default" if interval == PYTHONS_S else "")
        row = (f"{alone * 1e3:.2f} ms", f"{together * 1e3:.2f} ms", f"{together / alone:.1f}", f"{delta * 1e3:.0f} ms")
        print(f"| {name} | {' | '.join(row)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
