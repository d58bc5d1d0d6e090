"""The output head, forward and backward: times over the floor of three products, memory, errors against float64.

    PYTHONPATH=core:operator:orchestrator:trainer python3 -m benchmarks.head --out DIR

The floor is the forward product of the same shape three times in a row, in the same run. Sides are timed by turns;
peers that are not installed are left out. ``DIR/head.jsonl`` gets a line per side and shape; a table is printed last.
"""

import argparse
import gc
import importlib.util
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.head.problem import Problem, problem
from benchmarks.head.sides import SAMELY_WEIGHTED, SIDES, float64

FLOOR = "floor"
PRODUCTS = 3
GIB = float(1 << 30)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--widths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--rows", type=int, nargs="+", default=[8192, 32_768])
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--accuracy-rows", type=int, default=1024)
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of one call, the device's queue drained before and after."""
    if device.type != "cuda":
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin
    begins, ends = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    begins.record()
    work()
    ends.record()
    torch.cuda.synchronize()
    return float(begins.elapsed_time(ends)) / 1e3


def peak_gib(work: Callable[[], object], device: torch.device) -> float | None:
    """Memory at its highest in one call beyond what was there; gradients of both inputs are in it. None on a CPU."""
    if device.type != "cuda":
        return None
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / GIB


def timed(given: Problem, sides: list[str], repeats: int) -> list[dict[str, Any]]:
    """A row per side, the floor first."""
    device = given.hidden.device
    hidden, head = given.hidden.detach(), given.head.detach()

    def runner(name: str) -> Callable[[], object]:
        if name == FLOOR:
            return lambda: [hidden @ head.t() for _ in range(PRODUCTS)]

        def run() -> None:
            given.clear()
            SIDES[name](given)

        return run

    names = [FLOOR, *sides]
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats + 1):
        for name in names:
            taken = seconds(runner(name), device)
            if turn:  # the first warms up
                found[name].append(taken)
    given.clear()
    medians = {name: statistics.median(values) for name, values in found.items()}
    floor = medians[FLOOR]
    rows: list[dict[str, Any]] = [{"side": FLOOR, "ms": 1e3 * floor, "over_floor": 1.0}]
    for name in sides:
        spread = (max(found[name]) - min(found[name])) / medians[name]
        gib = peak_gib(runner(name), device)
        given.clear()
        values = {"ms": 1e3 * medians[name], "over_floor": medians[name] / floor, "spread": spread, "gib": gib}
        rows.append({"side": name, **values})
    return rows


def errors(given: Problem, sides: list[str]) -> dict[str, dict[str, float]]:
    """Each side against float64: largest absolute errors, and norms of differences over norms."""
    logprobs, entropy, of_hidden, of_head = float64(given)
    found = {}
    for name in [side for side in sides if side in SAMELY_WEIGHTED]:
        given.clear()
        mine, my_entropy = SIDES[name](given)
        found[name] = {
            **({} if mine is None else {"logprob": float((mine.double() - logprobs).abs().max())}),
            **({} if my_entropy is None else {"entropy": float((my_entropy.double() - entropy).abs().max())}),
            "grad_hidden": _relative(given.hidden.grad, of_hidden),
            "grad_head": _relative(given.head.grad, of_head),
        }
    given.clear()
    return found


def _relative(mine: Tensor | None, reference: Tensor) -> float:
    return math.inf if mine is None else float((mine.double() - reference).norm() / reference.norm())


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown."""
    columns = ("ms", "over_floor", "gib", "logprob", "entropy", "grad_hidden", "grad_head")
    lines = ["| H | K | side | ms | floors | GiB | logprob | entropy | dH | dW |", "|" + "---|" * 10]
    for row in rows:
        told = [row.get(name) for name in columns]
        cells = ["" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}" for value in told]
        lines.append("| " + " | ".join([str(row["width"]), str(row["rows"]), row["side"], *cells]) + " |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    has_liger = options.device == "cuda" and importlib.util.find_spec("liger_kernel") is not None
    sides = [name for name in options.sides if has_liger or not name.startswith("Liger")]
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    print(
        f"{name}, torch {torch.__version__}, {options.dtype}, V {options.vocabulary}, seed {options.seed}", flush=True
    )
    rows: list[dict[str, Any]] = []
    for width in options.widths:
        for count in options.rows:
            given = problem(count, width, options.vocabulary, seed=options.seed, device=device, dtype=dtype)
            told = errors(given.first(options.accuracy_rows), sides)
            shape = {"width": width, "rows": count}
            rows += [shape | row | told.get(row["side"], {}) for row in timed(given, sides, options.repeats)]
            del given
    (options.out / "head.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
