"""What a thread that computes in Python costs a loop of small operations beside it, by the interval of Python's lock.

    PYTHONPATH=core:trainer python3 -m benchmarks.python_lock

Forward and backward of forty small layers on one core, as a loop that Python's launches bound, alone and beside a
thread that never rests, by turns. Each interval has a line.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Sequence

import torch
from torch import nn

from echorl_trainer.background import SWITCH_S, share_lock

PYTHONS_S = 0.005
STEPS, WIDTH, LAYERS = 60, 64, 40


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


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--switch-s", type=float, nargs="+", default=[PYTHONS_S, SWITCH_S], help="intervals")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    layers, rows = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)], torch.randn(32, WIDTH)
    seconds(layers, rows)
    found: dict[float, list[tuple[float, float]]] = {interval: [] for interval in options.switch_s}
    for _ in range(options.repeats):
        for interval, pairs in found.items():
            share_lock(interval)
            pairs.append((seconds(layers, rows), beside(layers, rows)))
    print("| interval | a step | beside the thread | ÷ alone |\n|---|---|---|---|")
    for interval, pairs in found.items():
        alone, together = (statistics.median(side) for side in zip(*pairs, strict=True))
        name = f"{interval * 1e3:g} ms" + (", by default" if interval == PYTHONS_S else "")
        print(f"| {name} | {alone * 1e3:.2f} ms | {together * 1e3:.2f} ms | {together / alone:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
