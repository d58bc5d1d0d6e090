"""What threads that compute beside it cost a loop of small operations, by the interval of Python's lock; and a process.

    PYTHONPATH=core:trainer python3 -m benchmarks.python_lock

Forward and backward of forty small layers on one core, as a loop that Python's launches bound, alone, beside a thread
that never rests, and while a version is hashed and compared with the one before, by a thread and by a process. By
turns; each interval has a line. What a version costs is how much longer the steps beside it took, all together; it
needs a second core that is free.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from echorl_trainer.background import SWITCH_S, share_lock
from echorl_trainer.comparing import Comparer, Compares, ComparingProcess
from echorl_trainer.host_files import file_layouts
from echorl_trainer.snapshots import Snapshots

PYTHONS_S = 0.005
STEPS, WIDTH, LAYERS = 60, 64, 40
TENSORS, ELEMENTS, CHANGED = 60, 3 << 20, 0.02
"""Tensors of a version, elements of each, as in layers of a model of 0.6 B, and which share of them changes."""
DEADLINE_S = 60.0


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


def lost(layers: Sequence[nn.Module], rows: torch.Tensor, alone: float, compare: Compares) -> float:
    """Seconds by which the steps beside one comparison are longer, all together."""
    with ThreadPoolExecutor(1) as pool:
        began, steps = time.perf_counter(), 0
        comparison = pool.submit(compare, 1, 0)
        while not comparison.done():
            step(layers, rows)
            steps += 1
        comparison.result()
    return time.perf_counter() - began - steps * alone


def versions() -> Snapshots:
    """Two, in bfloat16."""
    shapes = {f"layer.{number}": (ELEMENTS,) for number in range(TENSORS)}
    snapshots = Snapshots(file_layouts(shapes, torch.bfloat16, single_name="all"), {}, pinned=False)
    chance = torch.Generator().manual_seed(1)
    before, after = (snapshots.take(version, timeout_s=1.0, check=lambda: None).files[0].data for version in (0, 1))
    before.normal_(generator=chance)
    after.copy_(before)
    after[torch.rand(len(after), generator=chance) < CHANGED] += 1
    return snapshots


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--switch-s", type=float, nargs="+", default=[PYTHONS_S, SWITCH_S], help="intervals")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    layers, rows = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)], torch.randn(32, WIDTH)
    seconds(layers, rows)
    snapshots = versions()
    mapped = snapshots.mapped()
    here, process = Comparer(mapped, threads=1), ComparingProcess(mapped, deadline_s=DEADLINE_S, threads=1)
    for compare in (here, process):
        compare(1, 0)
    found: dict[float, list[tuple[float, ...]]] = {interval: [] for interval in options.switch_s}
    for _ in range(options.repeats):
        for interval, times in found.items():
            share_lock(interval)
            alone = seconds(layers, rows)
            costs = (lost(layers, rows, alone, compare) for compare in (here, process))
            times.append((alone, beside(layers, rows), *costs))
    process.close()
    print("| interval | a step | beside a busy thread | ÷ alone | a version costs, by a thread | by a process |")
    print("|---|---|---|---|---|---|")
    for interval, times in found.items():
        alone, together, thread_s, process_s = (statistics.median(side) for side in zip(*times, strict=True))
        name = f"{interval * 1e3:g} ms" + (", by default" if interval == PYTHONS_S else "")
        row = (f"{alone * 1e3:.2f} ms", f"{together * 1e3:.2f} ms", f"{together / alone:.1f}")
        costs = " | ".join(f"{taken * 1e3:.0f} ms" for taken in (thread_s, process_s))
        print(f"| {name} | {' | '.join(row)} | {costs} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
